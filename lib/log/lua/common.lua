-- Shared by every script, put before its text. KEYS[1] is the session's hash, KEYS[2] its log.
--
-- Hash: `c` the counter and totals, `s:<stream>` one field per stream, `d:<n>` a ring of finished streams whose events
-- are all evicted, `q:<digest>` the stream on which a request runs, `i` `p` `n` `l` `u` the record (fixed part, principal, initialized, log level, subscriptions).
-- Log entry: one field `e`, "stream tag pseq ptag time mark payload"; its Redis ID is seq-offset.
-- Numbers are kept as text or printed with %.0f: Lua turns those from 10^14 into 1e+14.

local function text(n) return string.format('%.0f', n) end

local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Printing a number costs as much as a small command, so what most appends leave alone stays the text it was.

-- seq, floor: highest number issued, lowest retained. ftime: time of the floor entry. done: finished streams retired.
-- early: events evicted inside the retention window. As text: floors 'floor ftime size', rest 'done ttl early'.
local function counter()
  local raw = redis.call('HGET', KEYS[1], 'c')
  if not raw then return nil end
  local seq, floors, floor, ftime, bytes, count, rest, done, ttl, early =
    string.match(raw, '^(%d+) ((%d+) (%d+) %d+) (%d+) (%d+) ((%d+) (%d+) (%d+))$')
  return {
    seq = tonumber(seq), head = seq, floors = floors, floor = tonumber(floor), ftime = tonumber(ftime), bytes = tonumber(bytes),
    count = tonumber(count), rest = rest, done = tonumber(done), ttl = tonumber(ttl), early = tonumber(early)
  }
end

-- seq and time as text.
local function set_floor(c, seq, time, size)
  c.floor, c.ftime = tonumber(seq), tonumber(time)
  c.floors = seq .. ' ' .. time .. ' ' .. text(size)
end

local function set_rest(c, done, ttl, early)
  c.done, c.ttl, c.early = done, ttl, early
  c.rest = text(done) .. ' ' .. text(ttl) .. ' ' .. text(early)
end

local function pack_counter(c)
  return text(c.seq) .. ' ' .. c.floors .. ' ' .. text(c.bytes) .. ' ' .. text(c.count) .. ' ' .. c.rest
end

local STREAM = '^((%d+) (%d+) (%w+)) (%d+ %d+ %S+) (%a) (%S+) (%S+) (%S+) (%d+) (%d+ %d+ %S+) (%d+ %d+) (%S+) (.*)$'

-- newest, evicted, watermark: 'seq offset tag' of the newest event, of the newest evicted one, and of where the last
-- connection stood. flag: o open, f finished. runner, carrier, connection, fence. fight: 'time count', first takeover
-- of the current 10 s and their number. tokens: replica:n:seq:offset:pseq:ptag,...
-- request: digest, then JSON of the client's id and the method; empty for the standalone stream.
local NONE = '0 0 -'

local function unpack_stream(raw)
  local newest, nseq, noff, ntag, evicted, flag, runner, carrier, connection, fence, watermark, fight, tokens, request =
    string.match(raw, STREAM)
  return {
    raw = raw, newest = newest, nseq = tonumber(nseq), noff = tonumber(noff), ntag = ntag, evicted = evicted,
    flag = flag, runner = runner, carrier = carrier, connection = connection, fence = fence, watermark = watermark,
    fight = fight, tokens = tokens, request = request
  }
end

local function stream(name)
  local raw = redis.call('HGET', KEYS[1], 's:' .. name)
  return raw and unpack_stream(raw) or nil
end

local function pack_stream(s)
  return s.newest .. ' ' .. s.evicted .. ' ' .. s.flag .. ' ' .. s.runner .. ' ' .. s.carrier .. ' ' .. s.connection ..
    ' ' .. s.fence .. ' ' .. s.watermark .. ' ' .. s.fight .. ' ' .. s.tokens .. ' ' .. s.request
end

local function save_stream(name, s)
  redis.call('HSET', KEYS[1], 's:' .. name, pack_stream(s))
end

local function entry_id(seq, offset) return text(seq) .. '-' .. text(offset) end

-- The head of an entry's value: stream, tag, predecessor's seq and tag, time, mark.
local function entry_head(value)
  return string.match(value, '^(%w+) (%w+) (%d+) (%S+) (%d+) (%S) ')
end

-- Nothing of a finished stream is left: keep what later cursors need, for a bounded number of streams.
local MOST_DONE = 1000
local function retire(c, name, s)
  local slot = 'd:' .. text(c.done % MOST_DONE)
  local oldest = redis.call('HGET', KEYS[1], slot)
  if oldest then redis.call('HDEL', KEYS[1], 's:' .. oldest) end
  redis.call('HSET', KEYS[1], slot, name)
  set_rest(c, c.done + 1, c.ttl, c.early)
  s.tokens = '-'
end

-- Whether the log holds more than the counter: an older copy of the hash has come back.
local function log_is_ahead(c)
  return redis.call('XRANGE', KEYS[2], '(' .. c.head .. '-18446744073709551615', '+', 'COUNT', 1)[1] ~= nil
end

-- Makes the hash say what the log holds. They disagree when Redis has evicted the log, or an older copy of one of them
-- has come back; what is in the log is right. Events of a stream that the hash does not know cannot be told from those
-- of a later one of that name, so they go.
local function mend(c)
  local kept, first, last, known = redis.call('XRANGE', KEYS[2], '-', '+'), {}, {}, {}
  c.bytes, c.count = 0, 0
  for _, e in ipairs(kept) do
    local value = e[2][2]
    local name, tag, pseq, ptag, time, mark = entry_head(value)
    local seq, offset = string.match(e[1], '^(%d+)%-(%d+)$')
    if known[name] == nil then known[name] = stream(name) or false end
    c.seq = math.max(c.seq, tonumber(seq))
    if known[name] then
      if c.count == 0 then set_floor(c, seq, time, #value) end
      c.bytes, c.count = c.bytes + #value, c.count + 1
      first[name] = first[name] or (offset == '0' and NONE or pseq .. ' ' .. text(tonumber(offset) - 1) .. ' ' .. ptag)
      last[name] = { newest = seq .. ' ' .. offset .. ' ' .. tag, seq = tonumber(seq), mark = mark }
    else
      redis.call('XDEL', KEYS[2], e[1])
    end
  end
  c.head = text(c.seq)
  if c.count == 0 then set_floor(c, text(c.seq + 1), text(now()), 0) end
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local name = string.match(all[i], '^s:(%w+)$')
    if name then
      local s, l = unpack_stream(all[i + 1]), last[name]
      local was_over = s.flag == 'f' and s.evicted == s.newest
      if l and l.seq > s.nseq then
        s.newest = l.newest
        if l.mark == 'f' then s.flag = 'f' end
      end
      s.evicted = first[name] or s.newest
      if s.flag == 'f' and s.evicted == s.newest and not was_over then retire(c, name, s) end
      save_stream(name, s)
    end
  end
  redis.call('HSET', KEYS[1], 'c', pack_counter(c))
end

local function expire(ttl)
  local ms = text(math.floor(ttl * 1.125))
  redis.call('PEXPIRE', KEYS[1], ms)
  redis.call('PEXPIRE', KEYS[2], ms)
end

-- Sets both keys' TTL to 1.125 times the session's, when less than 1 times is left: most calls cost one PTTL.
local function keep_alive(ttl)
  local left = redis.call('PTTL', KEYS[1])
  if left < ttl or redis.call('PTTL', KEYS[2]) < ttl then expire(ttl) end
end
