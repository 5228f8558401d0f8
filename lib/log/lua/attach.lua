-- Makes a connection the carrier of a stream.
-- ARGV: 1 stream, 2 replica, 3 connection, 4 prefix of channels, 5 session ID
-- Reply: { fence, previous replica or '-', its connection, takeovers within 10 s, runner }, or nil when session or stream is gone
local name, replica, connection, channels, sid = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local FIGHT_MS = 10000

local c = counter()
local s = c and stream(name)
if not s then return false end
if s.connection == connection and s.carrier == replica then return { s.fence, '-', '-', 0, s.runner } end
local previous, previous_connection = s.carrier, s.connection
local takeovers = 0
if previous ~= '-' then
  local time = now()
  local since, count = string.match(s.fight, '^(%d+) (%d+)$')
  if time - since > FIGHT_MS then since, count = text(time), 0 end
  takeovers = count + 1
  s.fight = since .. ' ' .. text(takeovers)
end
s.carrier, s.connection, s.fence = replica, connection, text(s.fence + 1)
save_stream(name, s)
keep_alive(c.ttl)
if previous ~= '-' and previous ~= replica then
  redis.pcall('PUBLISH', channels .. previous, table.concat({ 'taken', sid, name, previous_connection, text(takeovers) }, ' '))
end
return { s.fence, previous, previous_connection, takeovers, s.runner }
