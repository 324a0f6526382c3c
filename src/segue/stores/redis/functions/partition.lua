-- One partition of a topic: records in segments that are only appended to, and who stands where.
--
-- The base is <namespace>:{topic:<topic>:<partition>}; all keys of a partition are in one slot.
--
-- <base>:head                HASH    next: the next offset · first: the oldest offset that is left
--                                    oldest: the oldest segment · segment: the one that takes
--                                    records · begin, begun_us, overhead: its first offset, when
--                                    that came, and its bytes beside payloads · last_us: when the
--                                    last record came · version: of the topic's manifest, as far as
--                                    it was told here · back: how often a place was set that is not
--                                    ahead of the one before
-- <base>:segments            HASH    number of a sealed segment → its facts, seven u64: first
--                                    offset, count, first µs, last µs, payload bytes, overhead
--                                    bytes, how often it was rewritten
-- <base>:seg_<n>:slots       STRING  twelve bytes a record: attr u64, length u32; bit 63 of attr
--                                    says that the record was removed
-- <base>:seg_<n>:batches     STRING  sixteen bytes a batch: index of its first record u32, position
--                                    of its payloads u32, µs when it came u64
-- <base>:seg_<n>:payload     STRING  the payloads, side by side; none while all are empty
-- <base>:staged_<what>:slots    STRING  a batch that is to be adopted; gone after a while
-- <base>:staged_<what>:payload  STRING  its payloads
-- <base>:places              HASH    reader, or group.<group> → the offset it committed
-- <base>:tokens              HASH    group.<group> → the token of who may commit for it
-- <base>:producers           HASH    number of a producer → "<epoch> <last sequence, 19 digits>"
-- <base>:adopted             ZSET    digest of the key of an adoption → its first offset
--
-- and what common.lua keeps: request_<line>, waiting_records, wake_<waiter>.
--
-- Numbers within the strings are little-endian, as NumPy reads them; facts are big-endian.

local SLOT_BYTES = 12
local BATCH_BYTES = 16
local FACTS = '>I8I8I8I8I8I8I8'
local BATCH = '<I4I4I8'
local PARTS = {':slots', ':batches', ':payload'}
local ROUSED_MAX = 1000       -- readers that one append wakes; the others look for themselves
local DROPPED_MAX = 256       -- segments that one call deletes
local SURVEYED_MAX = 1000     -- segments that one call tells of
local FITTED_MAX = 4194304    -- bytes of a string that is cut to size: more takes too long to copy
local ADOPTIONS_MAX = 65536   -- adoptions that are remembered, the latest ones

local function head_of(base)
  local found = redis.call('HMGET', base .. ':head', 'next', 'first', 'oldest', 'segment', 'begin',
    'begun_us', 'overhead', 'last_us', 'version', 'back')
  local function number(place) return tonumber(found[place] or 0) end
  return {
    next = number(1), first = number(2), oldest = number(3), segment = number(4),
    begin = number(5), begun_us = number(6), overhead = number(7), last_us = number(8),
    version = number(9), back = number(10),
  }
end

local function segment_key(base, id)
  return base .. ':seg_' .. whole(id)
end

-- First offset, count, first µs, last µs, payload bytes, overhead bytes and rewrites of a segment.
local function facts_of(base, head, id)
  if id == head.segment then
    local bytes = redis.call('STRLEN', segment_key(base, id) .. ':payload')
    return head.begin, head.next - head.begin, head.begun_us, head.last_us, bytes, head.overhead, 0
  end
  return struct.unpack(FACTS, redis.call('HGET', base .. ':segments', whole(id)))
end

-- The segment with the record at `offset`, which there is: its number and first offset.
local function segment_of(base, head, offset)
  if offset >= head.begin then return head.segment, head.begin end
  local low, high = head.oldest, head.segment - 1
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    if facts_of(base, head, middle) <= offset then low = middle else high = middle - 1 end
  end
  return low, (facts_of(base, head, low))
end

local function batch_at(key, number)
  local start = number * BATCH_BYTES
  local stop = start + BATCH_BYTES - 1
  return struct.unpack(BATCH, redis.call('GETRANGE', key .. ':batches', start, stop))
end

local function batches_in(key)
  return redis.call('STRLEN', key .. ':batches') / BATCH_BYTES
end

-- The last batch from `low` on for which `is_before` of index, position and time holds.
local function last_batch(key, low, is_before)
  local high = batches_in(key) - 1
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    if is_before(batch_at(key, middle)) then low = middle else high = middle - 1 end
  end
  return low
end

local function batch_of(key, index)
  return last_batch(key, 0, function(first) return first <= index end)
end

-- Close the segment that takes records. What was appended to piece by piece has room to spare, up
-- to as much as it holds.
local function seal(base, head)
  local key = segment_key(base, head.segment)
  for _, part in ipairs(PARTS) do
    local size = redis.call('STRLEN', key .. part)
    if size > 0 and size <= FITTED_MAX then
      redis.call('SET', key .. part, redis.call('GET', key .. part))
    end
  end
  redis.call('HSET', base .. ':segments', whole(head.segment),
    struct.pack(FACTS, facts_of(base, head, head.segment)))
  head.segment, head.begin = head.segment + 1, head.next
  redis.call('HSET', base .. ':head', 'segment', whole(head.segment), 'begin', whole(head.begin))
end

local function check_version(base, head, version)
  if head.version > version then
    return redis.error_reply('SEGUEMANIFEST ' .. whole(head.version))
  end
  if head.version < version then
    redis.call('HSET', base .. ':head', 'version', whole(version))
  end
end

-- Appending -----------------------------------------------------------------------------------

local function producer_of(base, producer)
  local seen = redis.call('HGET', base .. ':producers', producer)
  if not seen then return 0, '' end
  local epoch, sequence = string.match(seen, '^(%d+) (%d*)$')
  return tonumber(epoch), sequence
end

local function note_producer(base, producer, epoch, sequence)
  redis.call('HSET', base .. ':producers', producer, whole(epoch) .. ' ' .. sequence)
end

-- {first offset, whether a segment began}, or {-1, last sequence} if that is not the one the
-- producer believes, or {-2, first offset} if it was adopted before.
local function append(base, argv, now_us, ticks_us)
  local version, items_max, bytes_max = tonumber(argv[4]), tonumber(argv[5]), tonumber(argv[6])
  local overhead, age_us_max = tonumber(argv[7]), tonumber(argv[8])
  local slots, payload = argv[9], argv[10]
  local producer, epoch, before, after = argv[11], tonumber(argv[12]), argv[13], argv[14]
  local adoption = argv[15]
  local head = head_of(base)
  if producer ~= '' then
    local seen_epoch, sequence = producer_of(base, producer)
    if seen_epoch > epoch then return redis.error_reply('SEGUEFENCED ' .. whole(seen_epoch)) end
    if sequence ~= before then return {-1, sequence} end
  end
  if adoption ~= '' then
    local at = redis.call('ZSCORE', base .. ':adopted', adoption)
    if at then return {-2, tonumber(at)} end
  end
  local refusal = check_version(base, head, version)
  if refusal then return refusal end
  local time_us = math.max(now_us, head.last_us)
  local count, held = #slots / SLOT_BYTES, head.next - head.begin
  local position = redis.call('STRLEN', segment_key(base, head.segment) .. ':payload')
  if held > 0 and (held + count > items_max or position + #payload > bytes_max
      or (age_us_max > 0 and now_us - head.begun_us > age_us_max)) then
    seal(base, head)
    held, position = 0, 0
  end
  local key = segment_key(base, head.segment)
  redis.call('APPEND', key .. ':batches', struct.pack(BATCH, held, position, time_us))
  redis.call('APPEND', key .. ':slots', slots)
  if #payload > 0 then redis.call('APPEND', key .. ':payload', payload) end
  if held == 0 then
    redis.call('HSET', base .. ':head', 'begun_us', whole(time_us), 'overhead', whole(overhead))
  end
  redis.call('HSET', base .. ':head', 'next', whole(head.next + count), 'last_us', whole(time_us))
  if producer ~= '' then note_producer(base, producer, epoch, after) end
  if adoption ~= '' then
    redis.call('ZADD', base .. ':adopted', head.next, adoption)
    redis.call('ZREMRANGEBYRANK', base .. ':adopted', 0, -ADOPTIONS_MAX - 1)
  end
  rouse(base, 'records', ROUSED_MAX, ticks_us)
  return {head.next, held == 0 and head.segment > 0 and 1 or 0}
end

-- The last sequence number of a producer; from here on earlier users of the name are refused.
local function meet(base, argv)
  local epoch = tonumber(argv[5])
  local seen_epoch, sequence = producer_of(base, argv[4])
  if seen_epoch > epoch then return redis.error_reply('SEGUEFENCED ' .. whole(seen_epoch)) end
  if seen_epoch < epoch then note_producer(base, argv[4], epoch, sequence) end
  return sequence
end

-- Begin a new segment, unless the last one is empty.
local function roll(base)
  local head = head_of(base)
  if head.next == head.begin then return 0 end
  seal(base, head)
  return 1
end

local function note_version(base, argv, _, ticks_us)
  check_version(base, head_of(base), tonumber(argv[4]))
  rouse(base, 'records', ROUSED_MAX, ticks_us)  -- There may be partitions they do not know of.
  return 1
end

-- Adopting ------------------------------------------------------------------------------------

local function stage(base, argv)
  local key, kept_ms = base .. ':staged_' .. argv[4], argv[5]
  redis.call('SET', key .. ':slots', argv[6], 'PX', kept_ms)
  redis.call('SET', key .. ':payload', argv[7], 'PX', kept_ms)
  return 1
end

-- Make what was staged under a name segments of their own: {1, first offset}, or {-2, first
-- offset} if it was adopted before, or {0} if something of it is gone.
local function adopt(base, argv, now_us, ticks_us)
  local version, adoption, name, pieces = tonumber(argv[4]), argv[5], argv[6], tonumber(argv[7])
  local at = redis.call('ZSCORE', base .. ':adopted', adoption)
  if at then return {-2, tonumber(at)} end
  local staged = {}
  for piece = 1, pieces do
    staged[piece] = base .. ':staged_' .. name .. '_' .. whole(piece)
    if redis.call('EXISTS', staged[piece] .. ':slots', staged[piece] .. ':payload') < 2 then
      return {0}
    end
  end
  local head = head_of(base)
  local refusal = check_version(base, head, version)
  if refusal then return refusal end
  if head.next > head.begin then seal(base, head) end
  local first = head.next
  local time_us = math.max(now_us, head.last_us)
  for piece = 1, pieces do
    local key = segment_key(base, head.segment)
    for _, part in ipairs({':slots', ':payload'}) do
      redis.call('RENAME', staged[piece] .. part, key .. part)
      redis.call('PERSIST', key .. part)
    end
    local count = redis.call('STRLEN', key .. ':slots') / SLOT_BYTES
    redis.call('SET', key .. ':batches', struct.pack(BATCH, 0, 0, time_us))
    redis.call('HSET', base .. ':segments', whole(head.segment), struct.pack(FACTS, head.next, count,
      time_us, time_us, redis.call('STRLEN', key .. ':payload'), tonumber(argv[7 + piece]), 0))
    head.segment, head.next = head.segment + 1, head.next + count
  end
  redis.call('HSET', base .. ':head', 'next', whole(head.next), 'begin', whole(head.next),
    'segment', whole(head.segment), 'last_us', whole(time_us))
  redis.call('ZADD', base .. ':adopted', first, adoption)
  redis.call('ZREMRANGEBYRANK', base .. ':adopted', 0, -ADOPTIONS_MAX - 1)
  rouse(base, 'records', ROUSED_MAX, ticks_us)
  return {1, first}
end

-- Reading -------------------------------------------------------------------------------------

-- Whole batches of one segment, from the one with `offset` on: {first, next, version, segment,
-- offset of the first record, its batches, slots and payloads}. Up to so many records and bytes,
-- one batch at least. Without the last five where there is nothing at `offset`.
local function read(base, argv, _, ticks_us)
  local offset, records_max, bytes_max = tonumber(argv[4]), tonumber(argv[5]), tonumber(argv[6])
  local waiter, wait_us = argv[7], tonumber(argv[8])
  local head = head_of(base)
  if offset == head.next and waiter ~= '' then
    enlist(base, 'records', waiter, ticks_us + wait_us, ticks_us)
  end
  if offset < head.first or offset >= head.next then
    return {head.first, head.next, head.version}
  end
  local id, begin = segment_of(base, head, offset)
  local key = segment_key(base, id)
  local start = batch_of(key, offset - begin)
  local index, position = batch_at(key, start)
  local stop = last_batch(key, start, function(first, place)
    return first <= offset - begin + records_max and place - position <= bytes_max
  end)
  -- The one found begins within the limits. It is taken only if there is no other.
  local last = stop
  local ends_at, ends_position
  if stop > start and stop < batches_in(key) - 1 then
    last = stop - 1
    ends_at, ends_position = batch_at(key, stop)
  elseif stop < batches_in(key) - 1 then
    ends_at, ends_position = batch_at(key, stop + 1)
  else
    local _, count, _, _, bytes = facts_of(base, head, id)
    ends_at, ends_position = count, bytes
    if stop > start and (ends_at > offset - begin + records_max
        or ends_position - position > bytes_max) then
      last = stop - 1
      ends_at, ends_position = batch_at(key, stop)
    end
  end
  local payload = ''
  if ends_position > position then
    payload = redis.call('GETRANGE', key .. ':payload', position, ends_position - 1)
  end
  return {
    head.first, head.next, head.version, id, begin + index,
    redis.call('GETRANGE', key .. ':batches', start * BATCH_BYTES, (last + 1) * BATCH_BYTES - 1),
    redis.call('GETRANGE', key .. ':slots', index * SLOT_BYTES, ends_at * SLOT_BYTES - 1),
    payload,
  }
end

-- The offset of the first record that came at `time_us` or later.
local function offset_at(base, head, time_us)
  if head.next == head.first or head.last_us < time_us then return head.next end
  local low, high = head.oldest, head.segment
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, _, _, last_us = facts_of(base, head, middle)
    if last_us >= time_us then high = middle else low = middle + 1 end
  end
  if low == head.segment and head.begin == head.next then return head.next end
  local first = facts_of(base, head, low)
  local key = segment_key(base, low)
  local batch = last_batch(key, 0, function(_, _, came_us) return came_us < time_us end)
  local index, _, came_us = batch_at(key, batch)
  if came_us < time_us then index = (batch_at(key, batch + 1)) end
  return first + index
end

local function place_of(base, head, how, value)
  if how == 'earliest' then return head.first end
  if how == 'latest' then return head.next end
  if how == 'time' then return offset_at(base, head, tonumber(value)) end
  return tonumber(value)
end

-- {offset, first, next, version} of what a start stands for; whether it is there is not looked at.
local function resolve(base, argv)
  local head = head_of(base)
  return {place_of(base, head, argv[4], argv[5]), head.first, head.next, head.version}
end

-- Places --------------------------------------------------------------------------------------

local function marks(base)
  return redis.call('HKEYS', base .. ':places')
end

local function set_place(base, head, mark, offset)
  local before = redis.call('HGET', base .. ':places', mark)
  if not before or tonumber(before) > offset then
    redis.call('HSET', base .. ':head', 'back', whole(head.back + 1))
  end
  if not before or tonumber(before) ~= offset then
    redis.call('HSET', base .. ':places', mark, whole(offset))
  end
end

local function is_fenced(base, mark, token)
  local seen = redis.call('HGET', base .. ':tokens', mark) or 0
  return token ~= '' and tonumber(seen) > tonumber(token)
end

-- Save the place that a start stands for, and have a group's commits with an older token refused:
-- {1, place}, {0, first, next} if it is not there, {-1} if somebody has a newer token. One that was
-- saved before stays if `keeps` says so.
local function register(base, argv)
  local mark, how, value, keeps, token = argv[4], argv[5], argv[6], argv[7], argv[8]
  local head = head_of(base)
  if is_fenced(base, mark, token) then return {-1} end
  local before = redis.call('HGET', base .. ':places', mark)
  if before and keeps == '1' then return {1, math.min(tonumber(before), head.next)} end
  local offset = place_of(base, head, how, value)
  if offset < head.first or offset > head.next then return {0, head.first, head.next} end
  if token ~= '' then redis.call('HSET', base .. ':tokens', mark, token) end
  set_place(base, head, mark, offset)
  return {1, offset}
end

-- Save a place: {1}, {0, first, next} if it is not there, {-1} if the partition is another's.
local function save(base, argv)
  local mark, offset, token = argv[4], tonumber(argv[5]), argv[6]
  local head = head_of(base)
  if token ~= '' and redis.call('HGET', base .. ':tokens', mark) ~= token then return {-1} end
  if offset < head.first or offset > head.next then return {0, head.first, head.next} end
  set_place(base, head, mark, offset)
  return {1}
end

-- Let a member of a group commit from here on, and nobody with an older token: {1, its place}, or
-- {-1, the token} if there is a newer one.
local function hold(base, argv)
  local mark, token = argv[4], argv[5]
  if is_fenced(base, mark, token) then
    return {-1, tonumber(redis.call('HGET', base .. ':tokens', mark))}
  end
  redis.call('HSET', base .. ':tokens', mark, token)
  local head = head_of(base)
  local place = redis.call('HGET', base .. ':places', mark)
  if not place then
    set_place(base, head, mark, head.first)
    return {1, head.first}
  end
  return {1, math.min(tonumber(place), head.next)}
end

local function forget(base, argv)
  local mark, token = argv[4], argv[5]
  if token ~= '' and not is_fenced(base, mark, token) then
    redis.call('HSET', base .. ':tokens', mark, token)
  end
  return redis.call('HDEL', base .. ':places', mark)
end

-- Where in its segment a record is: the position of its payload, and when it came.
local function found_in(key, index)
  local first, position, time_us = batch_at(key, batch_of(key, index))
  if index > first then
    local start, stop = first * SLOT_BYTES, index * SLOT_BYTES - 1
    local slots = redis.call('GETRANGE', key .. ':slots', start, stop)
    for place = 9, #slots, SLOT_BYTES do
      position = position + struct.unpack('<I4', slots, place)
    end
  end
  return position, time_us
end

-- When the first record from `offset` on came that was not removed; -1 without one.
local function time_from(base, head, offset)
  while offset < head.next do
    local id, begin = segment_of(base, head, offset)
    local key = segment_key(base, id)
    local _, count, _, _, _, _, rewrites = facts_of(base, head, id)
    if rewrites == 0 then
      local _, time_us = found_in(key, offset - begin)
      return time_us
    end
    local slots = redis.call('GET', key .. ':slots')
    for index = offset - begin, count - 1 do
      if string.byte(slots, index * SLOT_BYTES + 8) < 128 then
        local _, time_us = found_in(key, index)
        return time_us
      end
    end
    offset = begin + count
  end
  return -1
end

-- {now, first, next, version, then of each place asked for, or of all: its name, the place, bytes
-- of payload from there on, and when the first record there came}.
local function lags(base, argv, now_us)
  local head = head_of(base)
  local places = redis.call('HGETALL', base .. ':places')
  local answer = {now_us, head.first, head.next, head.version}
  local after, counted, total = {}, head.segment, 0
  -- Bytes of payload in the segments after one; no further back than somebody asks for.
  local function bytes_after(id)
    while counted >= id do
      after[counted] = total
      local _, _, _, _, bytes = facts_of(base, head, counted)
      total, counted = total + bytes, counted - 1
    end
    return after[id]
  end
  for place = 1, #places, 2 do
    if argv[4] == '' or argv[4] == places[place] then
      local committed = math.min(tonumber(places[place + 1]), head.next)
      local offset, bytes = math.max(committed, head.first), 0
      if offset < head.next then
        local id, begin = segment_of(base, head, offset)
        local position = found_in(segment_key(base, id), offset - begin)
        local _, _, _, _, held = facts_of(base, head, id)
        bytes = held - position + bytes_after(id)
      end
      answer[#answer + 1] = places[place]
      answer[#answer + 1] = committed
      answer[#answer + 1] = bytes
      answer[#answer + 1] = time_from(base, head, offset)
    end
  end
  return answer
end

-- {now, first, next, oldest, segment, back, when the first record that is left came, the facts of the
-- segment that takes records, places, and the facts of sealed segments from a number on}.
local function survey(base, argv, now_us)
  local head = head_of(base)
  local start = math.max(tonumber(argv[4]), head.oldest)
  local answer = {
    now_us, head.first, head.next, head.oldest, head.segment, head.back,
    time_from(base, head, head.first), struct.pack(FACTS, facts_of(base, head, head.segment)),
    redis.call('HGETALL', base .. ':places'),
  }
  for id = start, math.min(head.segment, start + SURVEYED_MAX) - 1 do
    answer[#answer + 1] = redis.call('HGET', base .. ':segments', whole(id))
  end
  return answer
end

-- Keeping -------------------------------------------------------------------------------------

-- Delete the sealed segments up to and with a number: {the first that is gone, the first that is
-- not}. None if a place was set back since it was decided which may go.
local function drop(base, argv)
  local last, back = tonumber(argv[4]), tonumber(argv[5])
  local head = head_of(base)
  local first = head.oldest
  last = math.min(last, head.segment - 1, first + DROPPED_MAX - 1)
  if back ~= head.back or last < first then return {first, first} end
  for id = first, last do
    local key = segment_key(base, id)
    redis.call('UNLINK', key .. ':slots', key .. ':batches', key .. ':payload')
    redis.call('HDEL', base .. ':segments', whole(id))
  end
  head.oldest = last + 1
  redis.call('HSET', base .. ':head', 'oldest', whole(head.oldest),
    'first', whole((facts_of(base, head, head.oldest))))
  return {first, head.oldest}
end

-- Put what is left of a sealed segment in its place: 1, or 0 if it was rewritten or deleted since.
local function rewrite(base, argv)
  local id, seen = tonumber(argv[4]), tonumber(argv[5])
  local slots, batches, payload = argv[6], argv[7], argv[8]
  local found = redis.call('HGET', base .. ':segments', whole(id))
  if not found then return 0 end
  local first, count, first_us, last_us, _, overhead, rewrites = struct.unpack(FACTS, found)
  if rewrites ~= seen or #slots ~= count * SLOT_BYTES then return 0 end
  local key = segment_key(base, id)
  redis.call('SET', key .. ':slots', slots)
  redis.call('SET', key .. ':batches', batches)
  redis.call('SET', key .. ':payload', payload)
  redis.call('HSET', base .. ':segments', whole(id),
    struct.pack(FACTS, first, count, first_us, last_us, #payload, overhead, rewrites + 1))
  return 1
end

offer('append', append)
offer('meet', meet, {'allow-oom'})
offer('roll', roll, {'allow-oom'})
offer('note_version', note_version, {'allow-oom'})
offer('stage', stage)
offer('adopt', adopt)
offer('read', read, {'allow-oom'})
offer('resolve', resolve, {'no-writes'})
offer('marks', marks, {'no-writes'})
offer('register', register, {'allow-oom'})
offer('save', save, {'allow-oom'})
offer('hold', hold, {'allow-oom'})
offer('forget', forget, {'allow-oom'})
offer('lags', lags, {'no-writes'})
offer('survey', survey, {'no-writes'})
offer('drop', drop, {'allow-oom'})
offer('rewrite', rewrite, {'allow-oom'})

-- Adopting what writes have put aside ---------------------------------------------------------

-- Append what was staged as 6:name, once, as 5:adoption: {1, first offset, whether a segment began},
-- {-2, first offset} if that was done before, {0} if it is gone. 4, 7, 8, 9 and 10 are as for
-- `append`: version, items, bytes, overhead, age. From 11:bytes on it becomes a segment of its own,
-- for which nothing is copied.
local function take_in(base, argv, now_us, ticks_us)
  local at = redis.call('ZSCORE', base .. ':adopted', argv[5])
  if at then return {-2, tonumber(at)} end
  local key = base .. ':staged_' .. argv[6] .. '_1'
  if redis.call('EXISTS', key .. ':slots', key .. ':payload') < 2 then return {0} end
  if redis.call('STRLEN', key .. ':payload') >= tonumber(argv[11]) then
    local answer = adopt(base, {argv[1], argv[2], argv[3], argv[4], argv[5], argv[6], '1', argv[9]},
      now_us, ticks_us)
    if answer.err then return answer end
    return {1, answer[2], 1}
  end
  local answer = append(base, {argv[1], argv[2], argv[3], argv[4], argv[7], argv[8], argv[9], argv[10],
    redis.call('GET', key .. ':slots'), redis.call('GET', key .. ':payload'), '', '0', '', '', argv[5]},
    now_us, ticks_us)
  if answer.err then return answer end
  redis.call('UNLINK', key .. ':slots', key .. ':payload')
  return {1, answer[1], answer[2]}
end

offer('take_in', take_in)
