-- Lanes: what was never delivered, in segments.

local function lane_of(q, priority)
  local lane = q.lanes[priority]
  if lane then return lane end
  local name = 'queue_' .. whole(priority)
  local said = redis.call('HMGET', q.meta, name .. ':count', name .. ':next_offset',
    name .. ':head_segment', name .. ':tail_segment', name .. ':tail_count', name .. ':cuts')
  lane = make_lane(q.base, priority, said, 1)
  q.lanes[priority] = lane
  return lane
end

local function save_lane(q, lane)
  lane.is_changed = true
  if lane.is_new then
    redis.call('ZADD', q.base .. ':lanes', lane.priority, lane.priority)
    lane.is_new = false
  end
end

local function segment_key(lane, number)
  return lane.key .. whole(number)
end

-- Return the segment that an offset belongs to, and the first offset of that segment.
local function segment_of(q, lane, offset)
  local first, number, size = 0, 0, q.rules.segment_size
  if lane.cuts then
    for _, cut in ipairs(lane.cuts) do
      if cut[1] > offset then break end
      first, number, size = cut[1], cut[2], cut[3]
    end
  end
  local ahead = math.floor((offset - first) / size)
  return number + ahead, first + ahead * size
end

-- Have segments be of another size from here on.
local function cut_lane(q, lane, size_before)
  if lane.next_offset == 0 then return end
  local cuts = lane.cuts or { { 0, 0, size_before } }
  local number = lane.tail_count > 0 and lane.tail + 1 or lane.tail
  if cuts[#cuts][1] == lane.next_offset then table.remove(cuts) end
  if lane.count == 0 then cuts = {} end
  while #cuts > 1 and cuts[2][1] <= lane.next_offset - lane.count do table.remove(cuts, 1) end
  cuts[#cuts + 1] = { lane.next_offset, number, q.rules.segment_size }
  lane.cuts, lane.tail, lane.tail_count = cuts, number, 0
  if lane.count == 0 then lane.head = number end
  local words = {}
  for _, cut in ipairs(cuts) do
    words[#words + 1] = whole(cut[1]) .. ':' .. whole(cut[2]) .. ':' .. whole(cut[3])
  end
  set(q, lane.name .. ':cuts', table.concat(words, ','))
  lane.is_changed = true
end

-- Append items to a lane and return the offset of the first.
local function append_fresh(q, priority, items)
  local lane = lane_of(q, priority)
  local size = q.rules.segment_size
  local first, count = lane.next_offset, #items
  local done = 0
  while done < count do
    if lane.tail_count >= size then
      lane.tail, lane.tail_count = lane.tail + 1, 0
    end
    if lane.count + done == 0 then lane.head = lane.tail end
    local part = math.min(size - lane.tail_count, count - done, ARGUMENTS_MAX)
    redis.call('RPUSH', segment_key(lane, lane.tail), unpack(items, done + 1, done + part))
    lane.tail_count = lane.tail_count + part
    done = done + part
  end
  if lane.count == 0 then
    redis.call('ZADD', q.base .. ':lines', priority, priority)
  end
  lane.count = lane.count + count
  lane.next_offset = first + count
  save_lane(q, lane)
  q.news = q.news + count
  return first
end

-- Take up to `most` items out of the head segment. The caller saves the lane.
local function take_fresh(lane, most)
  while lane.count > 0 do
    local items = redis.call('LPOP', segment_key(lane, lane.head), math.min(most, lane.count))
    if items and #items > 0 then
      lane.count = lane.count - #items
      return items
    end
    if lane.head >= lane.tail then
      lane.count = 0  -- Nothing is where something should be: somebody deleted it.
      return nil
    end
    lane.head = lane.head + 1
  end
  return nil
end

-- Put back what `take_fresh` returned, from the item numbered `first` on.
local function untake_fresh(lane, items, first)
  local back = {}
  for place = #items, first, -1 do back[#back + 1] = items[place] end
  call_many('LPUSH', segment_key(lane, lane.head), back)
  lane.count = lane.count + #back
end

-- Have the head be the first segment there is.
local function leave_drained(q, lane)
  if lane.count == 0 then
    lane.head = lane.tail
  else
    lane.head = segment_of(q, lane, lane.next_offset - lane.count)
  end
end

