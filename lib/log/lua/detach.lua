-- A connection no longer carries its stream; where it stood becomes the watermark.
-- ARGV: 1 stream, 2 replica, 3 connection, 4 seq, 5 offset, 6 tag of its position
-- Reply: 1 when it was the carrier, else 0
local s = redis.call('HEXISTS', KEYS[1], 'c') == 1 and stream(ARGV[1])
if not s or s.carrier ~= ARGV[2] or s.connection ~= ARGV[3] then return 0 end
s.carrier, s.connection = '-', '-'
s.watermark = ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. ARGV[6]
save_stream(ARGV[1], s)
return 1
