-- Changes a session's record.
-- ARGV: 1 kind: initialized | logLevel | subscribe | unsubscribe, 2 ttl in ms, level or URI
-- Reply: 1, or 0 when the session is gone
local kind, value = ARGV[1], ARGV[2]
local MOST_SUBSCRIPTIONS = 1000

local c = counter()
if not c then return 0 end
if kind == 'initialized' then
  redis.call('HSET', KEYS[1], 'n', '1')
  set_rest(c, c.done, tonumber(value), c.early)
  redis.call('HSET', KEYS[1], 'c', pack_counter(c))
elseif kind == 'logLevel' then
  redis.call('HSET', KEYS[1], 'l', value)
else
  local kept = {}
  for _, uri in ipairs(cjson.decode(redis.call('HGET', KEYS[1], 'u'))) do
    if uri ~= value then kept[#kept + 1] = uri end
  end
  if kind == 'subscribe' and #kept < MOST_SUBSCRIPTIONS then kept[#kept + 1] = value end
  redis.call('HSET', KEYS[1], 'u', #kept == 0 and '[]' or cjson.encode(kept))
end
-- The life that the handshake was given may be longer.
if kind == 'initialized' then expire(c.ttl) else keep_alive(c.ttl) end
return 1
