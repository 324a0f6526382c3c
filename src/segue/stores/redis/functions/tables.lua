-- Queues and rings as tables: what is there between two offsets, a page at a time.
--
-- Called with the base of a queue or a ring; the keys are those of queue.lua and ring.lua. Nothing
-- here changes anything. A page ends after so many offsets, or with the message that makes it
-- larger than so many bytes: {the offset to go on from, rows}.

local SAMPLES = 8          -- messages whose length stands for that of all of a lane
local CHUNK_FIRST = 8      -- messages of a segment that are looked at before it is known how long they are
local CHUNK_MAX = 500
local NO_WRITES = {'no-writes'}

-- What a row was found as.
local FRESH, TOUCHED, DEAD, KEPT = 0, 1, 2, 3

-- Queues --------------------------------------------------------------------------------------

-- What was never delivered of a lane: from which offset to which, and in which segments.
local function fresh_of(base, lane)
  if lane == ASIDE then return {first = math.huge, stop = math.huge} end
  local name = 'queue_' .. whole(lane)
  local said = redis.call('HMGET', base .. ':metadata', name .. ':count', name .. ':next_offset',
    name .. ':head_segment', name .. ':tail_segment', name .. ':cuts', 'segment_size')
  local function number(place) return tonumber(said[place] or 0) end
  return {
    key = base .. ':' .. name .. '_seg_', first = number(2) - number(1), stop = number(2),
    head = number(3), tail = number(4), cuts = cuts_of(said[5]),
    rules = {segment_size = tonumber(said[6] or 100)},
  }
end

-- The segment with an offset of a lane, and the place of the offset in it.
local function find(fresh, offset)
  local segment, start = segment_of(fresh, fresh, offset)
  return segment, offset - math.max(start, fresh.first)
end

-- Up to `most` items of a lane from an offset on, all of one segment.
local function items_at(fresh, offset, most)
  local segment, place = find(fresh, offset)
  if not segment then return {} end
  return redis.call('LRANGE', fresh.key .. whole(segment), place, place + most - 1)
end

-- How long the first few items of a lane are, on the average.
local function mean_of(fresh)
  if fresh.first >= fresh.stop then return 0 end
  local items, bytes = items_at(fresh, fresh.first, SAMPLES), 0
  for _, item in ipairs(items) do bytes = bytes + #item end
  return #items > 0 and math.floor(bytes / #items) or 0
end

-- {messages that were touched, where what was pushed with a delay ends, dead letters, the first and
-- the next number of them; then of each lane its priority, the first offset that was never
-- delivered, the next offset, and the mean length of an item}.
local function lanes(base)
  local meta = base .. ':metadata'
  local said = redis.call('HMGET', meta, 'later:next_offset', 'dead:next_number')
  local first = redis.call('ZRANGE', base .. ':dead', 0, 0, 'WITHSCORES')
  local next_number = tonumber(said[2] or 0)
  local answer = {redis.call('HLEN', base .. ':touched'), tonumber(said[1] or 0),
    redis.call('ZCARD', base .. ':dead'), tonumber(first[2] or next_number), next_number}
  for _, priority in ipairs(redis.call('ZRANGE', base .. ':lanes', 0, -1)) do
    local fresh = fresh_of(base, tonumber(priority))
    answer[#answer + 1] = tonumber(priority)
    answer[#answer + 1] = fresh.first
    answer[#answer + 1] = fresh.stop
    answer[#answer + 1] = mean_of(fresh)
  end
  return answer
end

-- The ids of all that was touched and is not settled, and of the dead letters: of one moment.
local function ids(base)
  return {redis.call('HKEYS', base .. ':touched'), redis.call('HKEYS', base .. ':letters')}
end

-- Up to 6:count offsets of settled messages that are kept of the lane 4, from the offset 5 on.
local function kept(base, argv)
  return redis.call('ZRANGEBYSCORE', base .. ':kept_' .. argv[4], argv[5], '+inf', 'LIMIT', 0, argv[6])
end

local function add(answer, offset, what, state, item)
  local size = #answer
  answer[size + 1], answer[size + 2], answer[size + 3], answer[size + 4] = offset, what, state, item
  return #state + #item
end

-- Add what is known of messages that were taken, from an offset up to another, until there are so
-- many bytes; return where that was, and how many bytes there are.
local function add_taken(base, answer, lane, offset, stop, bytes_max)
  local names, bytes = {}, 0
  for each = offset, stop - 1 do names[#names + 1] = id_of(lane, each) end
  local states = redis.call('HMGET', base .. ':touched', unpack(names))
  for place, id in ipairs(names) do
    if bytes >= bytes_max then return offset + place - 1, bytes end
    local item = states[place] and redis.call('HGET', base .. ':bodies', id)
    if item then
      bytes = bytes + add(answer, offset + place - 1, TOUCHED, states[place], item)
    else
      local letter = redis.call('HGET', base .. ':letters', id)
      if letter then
        bytes = bytes + add(answer, offset + place - 1, DEAD, letter, '')
      else
        local settled = redis.call('HGET', base .. ':kept', id)
        if settled then bytes = bytes + add(answer, offset + place - 1, KEPT, '', settled) end
      end
    end
  end
  return stop, bytes
end

-- The messages of the lane 4 from the offset 5 up to 6, at most 7:count offsets and about 8:bytes:
-- offset, what it was found as, its state or dead letter, and its item.
local function rows(base, argv)
  local lane, offset, stop = tonumber(argv[4]), tonumber(argv[5]), tonumber(argv[6])
  local bytes_max = tonumber(argv[8])
  stop = math.min(stop, offset + tonumber(argv[7]))
  local answer, bytes = {0}, 0
  local fresh = fresh_of(base, lane)
  if offset < fresh.first then
    offset, bytes = add_taken(base, answer, lane, offset, math.min(stop, fresh.first), bytes_max)
  end
  local seen, chunk = 0, CHUNK_FIRST
  while offset >= fresh.first and offset < stop and bytes < bytes_max do
    local items = items_at(fresh, offset, math.min(chunk, stop - offset))
    if #items == 0 then offset = stop break end  -- Not pushed yet, or somebody deleted it.
    for _, item in ipairs(items) do
      bytes = bytes + add(answer, offset, FRESH, '', item)
      offset = offset + 1
    end
    seen = seen + #items
    chunk = math.max(1, math.min(CHUNK_MAX, math.floor((bytes_max - bytes) * seen / bytes)))
  end
  answer[1] = offset
  return answer
end

-- Up to 6:count dead letters and about 7:bytes with the numbers from 4 up to 5: number, id, letter.
local function letters(base, argv)
  local bytes, bytes_max = 0, tonumber(argv[7])
  local found = redis.call('ZRANGEBYSCORE', base .. ':dead', argv[4], '(' .. argv[5], 'WITHSCORES',
    'LIMIT', 0, argv[6])
  local answer = {tonumber(argv[5])}
  for place = 1, #found, 2 do
    local number = tonumber(found[place + 1])
    if bytes >= bytes_max then answer[1] = number return answer end
    local letter = redis.call('HGET', base .. ':letters', found[place]) or ''
    bytes = bytes + #letter
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = number, found[place], letter
    answer[1] = number + 1
  end
  if #found < 2 * tonumber(argv[6]) then answer[1] = tonumber(argv[5]) end
  return answer
end

-- Up to 6:count numbers of dead letters from 4 up to 5.
local function numbers(base, argv)
  local found = redis.call('ZRANGEBYSCORE', base .. ':dead', argv[4], '(' .. argv[5], 'WITHSCORES',
    'LIMIT', 0, argv[6])
  local answer = {}
  for place = 2, #found, 2 do answer[#answer + 1] = tonumber(found[place]) end
  return answer
end

-- Rings ---------------------------------------------------------------------------------------

local function record_of(base, shape, offset)
  local segment = math.floor(offset / shape[2])
  return base .. ':buffer_' .. whole(segment % (shape[1] / shape[2])), whole(offset % shape[2])
end

local function shape_of(base)
  local said = redis.call('HMGET', base .. ':metadata', 'capacity', 'entries_per_segment')
  return {tonumber(said[1] or 1), tonumber(said[2] or 1)}
end

-- The mean length of a few entries from the offset 4 on.
local function sample(base, argv)
  local shape, bytes, count = shape_of(base), 0, 0
  for offset = tonumber(argv[4]), tonumber(argv[4]) + SAMPLES - 1 do
    local length = redis.call('HSTRLEN', record_of(base, shape, offset))
    if length > 0 then bytes, count = bytes + length, count + 1 end
  end
  return count > 0 and math.floor(bytes / count) or 0
end

-- The entries from the offset 4 up to 5 that are not overwritten, at most 6:count offsets and about
-- 7:bytes: each as it is kept, its offset and time in front.
local function entries(base, argv)
  local offset, bytes, bytes_max = tonumber(argv[4]), 0, tonumber(argv[7])
  local stop = math.min(tonumber(argv[5]), offset + tonumber(argv[6]))
  local shape, answer = shape_of(base), {0}
  while offset < stop and bytes < bytes_max do
    local found = redis.call('HGET', record_of(base, shape, offset))
    if found and struct.unpack('>I8', found) == offset then
      answer[#answer + 1] = found
      bytes = bytes + #found
    end
    offset = offset + 1
  end
  answer[1] = offset
  return answer
end

offer('lanes', lanes, NO_WRITES)
offer('ids', ids, NO_WRITES)
offer('kept', kept, NO_WRITES)
offer('rows', rows, NO_WRITES)
offer('letters', letters, NO_WRITES)
offer('numbers', numbers, NO_WRITES)
offer('sample', sample, NO_WRITES)
offer('entries', entries, NO_WRITES)
