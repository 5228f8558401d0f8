-- Appends messages to one stream: number, entry, eviction, TTL and hint in one step.
-- ARGV: 1 stream, 2 replica, 3 n of the token, 4 highest seq the caller has seen, 5 windowMs, 6 maxEvents, 7 maxBytes,
--       8 request ("digest JSON"; not empty: open the stream if it is not there), 9 connection ('-': none carries it yet),
--       10 'seq-tag' that the newest event must be (empty: any), 11 '1' to finish the stream, 12 prefix of channels,
--       13 session ID, then per event: tag, mark (o opening, m message, f final response), payload
-- Reply: { 'appended', first seq, first offset, predecessor's seq, its tag, flag, carrier, connection, fence, evicted early },
--        a repeated token is answered with what it got; else { 'gone' | 'unknown' | 'finished' | 'changed' }, or
--        { 'duplicate', stream } when the request to open a stream for runs on that one
local name, replica, n, seen = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local window, max_events, max_bytes = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local request, connection, expect, finish, channels, sid = ARGV[8], ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13]
local FIRST, MOST_EVICTED, MOST_TOKENS, HINT_BYTES = 14, 64, 32, 16384
local count = (#ARGV - FIRST + 1) / 3

local opens
local c = counter()
if not c then return { 'gone' } end
-- A caller that has written last itself knows that the counter is not an older one: looking costs a tenth of the script.
if redis.call('XLEN', KEYS[2]) ~= c.count or (seen ~= c.seq and log_is_ahead(c)) then mend(c) end
local s = stream(name)
if not s then
  if request == '' then return { 'unknown' } end
  local same = 'q:' .. string.match(request, '^%S+')
  local running = redis.call('HGET', KEYS[1], same)
  if running then
    local r = stream(running)
    if r and r.flag ~= 'f' then return { 'duplicate', running } end
  end
  opens = same
  s = {
    newest = NONE, nseq = 0, noff = -1, ntag = '-', evicted = NONE, flag = 'o', runner = replica,
    carrier = connection == '-' and '-' or replica, connection = connection, fence = connection == '-' and '0' or '1',
    watermark = NONE, fight = '0 0', tokens = '-', request = request
  }
end

local function reply(seq, offset, pseq, ptag, early)
  return { 'appended', seq, offset, pseq, ptag, s.flag, s.carrier, s.connection, s.fence, early }
end

local tokens = {}
for token in string.gmatch(s.tokens, '[^,]+') do
  local who, which, rest = string.match(token, '^(%w+):(%d+):(.*)$')
  if who == replica then
    local tseq, toff, tpseq, tptag = string.match(rest, '^(%d+):(%d+):(%d+):(%S+)$')
    if which == n then return reply(tseq, toff, tpseq, tptag, 0) end
    if tonumber(which) > tonumber(n) then return { 'finished' } end
  elseif who then
    tokens[#tokens + 1] = token
  end
end
if s.flag == 'f' then return { 'finished' } end
if expect ~= '' and expect ~= text(s.nseq) .. '-' .. s.ntag then return { 'changed' } end

local time = now()
local pseq, ptag = string.match(s.newest, '^%d+'), s.ntag
local first_seq, first_offset = math.max(c.seq, seen) + 1, text(s.noff + 1)
local elsewhere = s.carrier ~= '-' and s.carrier ~= replica
local hint, hint_size = {}, 0
local stamp = ' ' .. text(time) .. ' '
local before = pseq

for i = 1, count do
  local at = FIRST + (i - 1) * 3
  local tag, mark, payload = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local entry = name .. ' ' .. tag .. ' ' .. before .. ' ' .. s.ntag .. stamp .. mark .. ' ' .. payload
  local seq, offset = first_seq + i - 1, i == 1 and first_offset or text(s.noff + 1)
  local at_seq = text(seq)
  local added = redis.pcall('XADD', KEYS[2], at_seq .. '-' .. offset, 'e', entry)
  if type(added) == 'table' and added.err then
    if i > 1 or not log_is_ahead(c) then return added end
    mend(c)
    return redis.error_reply('AGAIN the log was ahead of its counter, which is put right now')
  end
  s.nseq, s.noff, s.ntag = seq, tonumber(offset), tag
  s.newest = at_seq .. ' ' .. offset .. ' ' .. tag
  before = at_seq
  if mark == 'f' then s.flag = 'f' end
  if c.count == 0 then set_floor(c, at_seq, text(time), #entry) end
  c.seq, c.bytes, c.count = seq, c.bytes + #entry, c.count + 1
  if elsewhere then
    hint[#hint + 1] = '\n' .. at_seq .. '-' .. offset .. ' ' .. entry
    hint_size = hint_size + #entry
  end
end
if finish == '1' then s.flag = 'f' end
if s.watermark == NONE then s.watermark = s.newest end

table.insert(tokens, 1, table.concat({ replica, n, text(first_seq), first_offset, pseq, ptag }, ':'))
s.tokens = table.concat(tokens, ',', 1, math.min(#tokens, MOST_TOKENS))

local function due() return c.count > max_events or c.bytes > max_bytes or time - c.ftime > window end

-- Oldest first, a bounded number at a time; the newest event stays.
local early, left, from, read = 0, math.min(MOST_EVICTED, c.count - 1), '-', 2
local touched = {}
while left > 0 and due() do
  local page = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', read)
  local i = 1
  while i < #page and left > 0 and due() do
    local value, following = page[i][2][2], page[i + 1]
    local who, tag = entry_head(value)
    local o = who == name and s or touched[who]
    if o == nil then
      o = stream(who) or false
      touched[who] = o
    end
    if o then o.evicted = string.gsub(page[i][1], '%-', ' ') .. ' ' .. tag end
    if time - c.ftime <= window then early = early + 1 end
    local _, _, _, _, ftime = entry_head(following[2][2])
    set_floor(c, string.match(following[1], '^%d+'), ftime, #following[2][2])
    c.bytes, c.count = c.bytes - #value, c.count - 1
    from, left, i = following[1], left - 1, i + 1
  end
  read = MOST_EVICTED + 1
end
if early > 0 then set_rest(c, c.done, c.ttl, c.early + early) end
if from ~= '-' then redis.call('XTRIM', KEYS[2], 'MINID', from) end
for who, o in pairs(touched) do
  if o then
    if o.flag == 'f' and o.evicted == o.newest then retire(c, who, o) end
    save_stream(who, o)
  end
end
if finish == '1' and s.evicted == s.newest then retire(c, name, s) end

redis.call('HSET', KEYS[1], 's:' .. name, pack_stream(s), 'c', pack_counter(c))
if s.flag == 'f' then
  if s.request ~= '' then redis.call('HDEL', KEYS[1], 'q:' .. string.match(s.request, '^%S+')) end
elseif opens then
  redis.call('HSET', KEYS[1], opens, name)
end
keep_alive(c.ttl)

if elsewhere then
  local head = table.concat({ 'hint', sid, name, s.fence }, ' ')
  redis.pcall('PUBLISH', channels .. s.carrier, hint_size < HINT_BYTES and head .. table.concat(hint) or head)
end
return reply(text(first_seq), first_offset, pseq, ptag, early)
