-- A look at one stream from a connection that carries it, or did: keeps the session alive, notes the position.
-- ARGV: as detach.lua. Reply: the stream field, or nil when session or stream is gone
local c = counter()
local s = c and stream(ARGV[1])
if not s then return false end
local position = ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. ARGV[6]
if s.carrier == ARGV[2] and s.connection == ARGV[3] and s.watermark ~= position then
  s.watermark = position
  save_stream(ARGV[1], s)
end
keep_alive(c.ttl)
return s.raw
