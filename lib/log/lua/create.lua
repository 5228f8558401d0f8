-- Opens a session: its record, its counter at 1, and the opening event of the standalone stream.
-- ARGV: 1 fixed record (JSON), 2 principal, 3 ttl in ms, 4 tag of the opening event
-- Reply: 1, also when the session is there already (a repeated call)
local record, principal, ttl, tag = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

if redis.call('EXISTS', KEYS[1]) == 1 then return 1 end
local time = now()
local value = '1 ' .. tag .. ' 0 - ' .. text(time) .. ' o '
local c = { seq = 1, bytes = #value, count = 1 }
set_floor(c, '1', text(time), #value)
set_rest(c, 0, ttl, 0)
redis.call('HSET', KEYS[1],
  'i', record, 'p', principal, 'n', '0', 'l', '', 'u', '[]',
  'c', pack_counter(c),
  's:1', pack_stream({
    newest = '1 0 ' .. tag, evicted = NONE, flag = 'o', runner = '-', carrier = '-', connection = '-', fence = '0',
    watermark = '1 0 ' .. tag, fight = '0 0', tokens = '-', request = ''
  }))
-- Not first: what frees memory is never refused, and would open the way for what follows.
redis.call('DEL', KEYS[2])
redis.call('XADD', KEYS[2], '1-0', 'e', value)
keep_alive(ttl)
return 1
