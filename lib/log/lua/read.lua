-- Reads one page of a stream's events after a position.
-- ARGV: 1 stream, 2 seq and 3 offset of the position, 4 seq scanned so far, 5 most bytes of payload (at least one event)
-- Reply: { stream field, scanned, more 0|1, id, value, id, value, ... }, or nil when session or stream is gone
local name, seq, offset, scanned, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local PAGE, WALK = 512, 64

local s = stream(name)
if not s then return false end
local reply, bytes = { s.raw, text(scanned), 0 }, 0
local missing = s.noff - offset
if s.nseq <= seq or s.nseq <= scanned then return reply end

local size = #reply
local function take(id, value)
  if size > 3 and bytes + #value > most then return false end
  bytes = bytes + #value
  reply[size + 1], reply[size + 2], size = id, value, size + 2
  return true
end

-- Few events of a quiet stream in a busy session: follow the predecessors back from its newest.
if missing > 0 and missing <= WALK and s.nseq - math.max(seq, scanned) > 4 * missing then
  local chain, at, off = {}, s.nseq, s.noff
  while at > seq and #chain < missing do
    local entry = redis.call('XRANGE', KEYS[2], entry_id(at, off), entry_id(at, off))[1]
    if not entry then break end
    chain[#chain + 1] = entry
    local _, _, pseq = entry_head(entry[2][2])
    at, off = tonumber(pseq), off - 1
  end
  for i = #chain, 1, -1 do
    if not take(chain[i][1], chain[i][2][2]) then
      reply[3] = 1
      return reply
    end
    reply[2] = string.match(chain[i][1], '^%d+')
  end
  return reply
end

local page = redis.call('XRANGE', KEYS[2], entry_id(math.max(seq, scanned) + 1, 0), '+', 'COUNT', PAGE)
local mine, last = name .. ' ', #page
for i, entry in ipairs(page) do
  local value = entry[2][2]
  if string.sub(value, 1, #mine) == mine and not take(entry[1], value) then
    last = i - 1
    break
  end
end
if last > 0 then reply[2] = string.match(page[last][1], '^%d+') end
if last < #page or #page == PAGE then reply[3] = 1 end
return reply
