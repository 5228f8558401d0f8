-- Ends a session: nothing of it remains, and every replica is told.
-- ARGV: 1 channel of all replicas, 2 session ID. Reply: { 1, or 0 when it was gone already, principal }
local principal = redis.call('HGET', KEYS[1], 'p') or ''
local there = redis.call('DEL', KEYS[1], KEYS[2]) > 0
if there then redis.pcall('PUBLISH', ARGV[1], 'terminated ' .. ARGV[2]) end
return { there and 1 or 0, principal }
