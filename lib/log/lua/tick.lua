-- A look at one stream from a connection that carries it, or did: keeps the session alive, notes the position.
-- ARGV: as detach.lua. Reply: the stream field, or nil when session or stream is gone
local c = counter()
local s = c and stream(ARGV[1])
if not s then return false end
if s.carrier == ARGV[2] and s.connection == ARGV[3] and s.wseq ~= tonumber(ARGV[4]) then
  s.wseq, s.woff, s.wtag = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
  save_stream(ARGV[1], s)
end
keep_alive(c.ttl)
return s.raw
