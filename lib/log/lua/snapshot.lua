-- Reads what the decision needs, at one moment, and counts as activity of the session.
-- ARGV: 1 principal, 2 stream ('': none), 3 seq, 4 offset, 5 tag of the cursor ('': the stream's watermark),
--       6 '1' to only look: for any principal, without keeping the session alive
-- Reply: { i, n, l, u, head, floor, stream field or '', retained 0|1, evicted all 0|1 }, or nil when the session is gone
--        or another principal's
local principal, name, seq, offset, tag, look = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6] == '1'

local c = counter()
if not c or (not look and redis.call('HGET', KEYS[1], 'p') ~= principal) then return false end
local length = name == '' and 0 or redis.call('XLEN', KEYS[2])
if length > 0 and not look and (length ~= c.count or log_is_ahead(c)) then mend(c) end
local record = redis.call('HMGET', KEYS[1], 'i', 'n', 'l', 'u')
local reply = { record[1], record[2], record[3], record[4], text(c.seq), text(c.floor), '', 0, 0 }
if not look then keep_alive(c.ttl) end
if name == '' then return reply end

-- A log that vanished alone has no event of any stream.
if length == 0 then
  reply[6], reply[9] = text(c.seq + 1), 1
elseif look and length ~= c.count then
  reply[6] = string.match(redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1][1], '^%d+')
end
local s = stream(name)
if not s then return reply end
reply[7] = s.raw
if tag == '' then seq, offset, tag = string.match(s.watermark, '^(%d+) (%d+) (%S+)$') end
local id = seq .. '-' .. offset
local found = redis.call('XRANGE', KEYS[2], id, id)[1]
if found then
  local who, its = entry_head(found[2][2])
  if who == name and its == tag then reply[8] = 1 end
end
return reply
