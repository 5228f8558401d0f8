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

-- seq, floor: highest number issued, lowest retained. ftime, fsize: time and size of the floor entry. done: finished
-- streams retired. early: events evicted inside the retention window.
local function counter()
  local raw = redis.call('HGET', KEYS[1], 'c')
  if not raw then return nil end
  local seq, floor, ftime, fsize, bytes, count, done, ttl, early =
    string.match(raw, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  return {
    seq = tonumber(seq), floor = tonumber(floor), ftime = tonumber(ftime), fsize = tonumber(fsize),
    bytes = tonumber(bytes), count = tonumber(count), done = tonumber(done), ttl = tonumber(ttl), early = tonumber(early)
  }
end

local function pack_counter(c)
  return table.concat({
    text(c.seq), text(c.floor), text(c.ftime), text(c.fsize), text(c.bytes), text(c.count), text(c.done), text(c.ttl),
    text(c.early)
  }, ' ')
end

local STREAM = '^(%d+) (%d+) (%w+) (%d+) (%d+) (%S+) (%a) (%S+) (%S+) (%S+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%S+) (.*)$'

-- n*: newest event. e*: newest evicted one ('-': none). flag: o open, f finished. runner, carrier, connection, fence.
-- w*: watermark. ttime, tcount: first takeover of the current 10 s and their number. tokens: replica:n:seq:offset:count,...
-- request: digest, then JSON of the client's id and the method; empty for the standalone stream.
local function unpack_stream(raw)
  local s = { raw = raw }
  local nseq, noff, eseq, eoff, fence, wseq, woff, ttime, tcount
  nseq, noff, s.ntag, eseq, eoff, s.etag, s.flag, s.runner, s.carrier, s.connection, fence, wseq, woff, s.wtag, ttime,
  tcount, s.tokens, s.request = string.match(raw, STREAM)
  s.nseq, s.noff, s.eseq, s.eoff = tonumber(nseq), tonumber(noff), tonumber(eseq), tonumber(eoff)
  s.fence, s.wseq, s.woff, s.ttime, s.tcount = tonumber(fence), tonumber(wseq), tonumber(woff), tonumber(ttime), tonumber(tcount)
  return s
end

local function stream(name)
  local raw = redis.call('HGET', KEYS[1], 's:' .. name)
  return raw and unpack_stream(raw) or nil
end

local function pack_stream(s)
  return table.concat({
    text(s.nseq), text(s.noff), s.ntag, text(s.eseq), text(s.eoff), s.etag, s.flag, s.runner, s.carrier, s.connection,
    text(s.fence), text(s.wseq), text(s.woff), s.wtag, text(s.ttime), text(s.tcount), s.tokens, s.request
  }, ' ')
end

local function save_stream(name, s)
  redis.call('HSET', KEYS[1], 's:' .. name, pack_stream(s))
end

local function entry_id(seq, offset) return text(seq) .. '-' .. text(offset) end

-- The head of an entry's value: stream, tag, predecessor's seq and tag, time, mark.
local function entry_head(value)
  return string.match(value, '^(%w+) (%w+) (%d+) (%S+) (%d+) (%S) ')
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
