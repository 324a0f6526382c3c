-- Looking, without changing anything anybody could see.

-- Visit what came back to a priority, or waits for its group, until `visit` says 'all'; tell whether it did.
local function each_touched(q, priority, visit)
  return each_in_line(q, priority, function(id)
    local s, item = state_of(q, id), item_of(q, id)
    if not s or not item then return false end
    local home, offset = place_of(id)
    return visit(id, s, home, offset, priority, item) == 'all'
  end)
end

-- Visit what was never delivered of a lane, from `first` on and before `stop`, until `visit` says 'lane',
-- or 'all'; tell whether it said that.
local function each_fresh(q, lane, first, stop, visit)
  local offset, segment = lane.next_offset - lane.count, lane.head
  if first > offset then
    local number, start = segment_of(q, lane, first)
    offset, segment = math.max(offset, start), number
  end
  stop = math.min(stop, lane.next_offset)
  while offset < stop and segment <= lane.tail do
    for _, item in ipairs(redis.call('LRANGE', segment_key(lane, segment), 0, -1)) do
      if offset >= first and offset < stop and is_sound(item) then
        local said = visit(id_of(lane.priority, offset), nil, lane.priority, offset, lane.priority, item)
        if said then return said == 'all' end
      end
      offset = offset + 1
    end
    segment = segment + 1
  end
  return false
end

-- Visit what waits, in order, until `visit(id, state or nil, lane, offset, priority, item)` says
-- 'all'; 'lane' ends with what was never delivered of a priority.
local function each_waiting(q, visit)
  for _, lane in ipairs(lanes_of(q)) do
    if each_touched(q, lane.priority, visit) then return end
    if each_fresh(q, lane, 0, lane.next_offset, visit) then return end
  end
end

-- Visit what could be delivered now, as groups allow it, until `visit(…, is_outlived)` says true.
local function each_admitted(q, visit)
  local places = q.rules.group_concurrency
  local taken = {}
  local held, looked = 0, 0
  each_waiting(q, function(id, s, _, _, priority, item)
    looked = looked + 1
    if looked > HELD_MAX + LOOKED_MAX then return 'all' end
    local group = group_of(item)
    local is_started = s ~= nil and s.started == 1
    if group then
      local count = taken[group]
      if not count then
        local said = redis.call('HMGET', q.base .. ':groups', 'l' .. group, 's' .. group)
        count = { tonumber(said[1] or 0), tonumber(said[2] or 0) }
        taken[group] = count
      end
      if count[1] >= places or (count[2] >= places and not is_started) then
        held = held + 1
        return held > HELD_MAX and 'lane' or nil
      end
      if not is_over(q, item) then
        count[1] = count[1] + 1
        if not is_started then count[2] = count[2] + 1 end
      elseif is_started then
        count[2] = count[2] - 1
      end
    end
    return visit(id, s, priority, item, is_over(q, item)) and 'all' or nil
  end)
end

-- Answer up to 4:count messages that would be delivered next: id, priority, attempt, item of each.
local function peek(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  finish(q)
  local answer, left, bytes = {}, tonumber(argv[4]), PORTION_BYTES_MAX
  if q.paused then return answer end
  each_admitted(q, function(id, s, priority, item, is_outlived)
    if not is_outlived then
      bytes = bytes - #item
      if bytes < 0 and #answer > 0 then return true end
      answer[#answer + 1] = id
      answer[#answer + 1] = priority
      answer[#answer + 1] = s and s.attempt + 1 or 1
      answer[#answer + 1] = item
      left = left - 1
    end
    return left == 0
  end)
  return answer
end

-- Undo the taking of one message.
local function put_back(q, delivery)
  local s, priority = delivery.state, delivery.priority
  if s and s.group then
    bump(q, 'l' .. s.group, -1)
    if delivery.was_started ~= 1 then bump(q, 's' .. s.group, -1) end
  end
  if delivery.was_started then
    s.kind, s.started, s.attempt = READY, delivery.was_started, s.attempt - 1
    line_up(q, delivery.ids[1], s)
    return
  end
  local lane = lane_of(q, priority)
  lane.head = delivery.segment
  untake_fresh(lane, delivery.items, 1)
  save_lane(q, lane)
  redis.call('ZADD', q.base .. ':lines', priority, priority)
end

-- Answer whether something could be leased now, whether there was too much in the way to tell, and in
-- how many µs something may happen. 4:waiter is woken within 5:µs.
local function probe(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  local most = allowed(q, 1)
  local found, more = {}, false
  -- Taken and put back: what is in the way, outlived or to be held, is dealt with.
  if most then found, more = take(q, most, false) end
  for _, delivery in ipairs(found) do put_back(q, delivery) end
  if #found > 0 then
    if argv[4] ~= '' then delist(base, 'takers', argv[4]) end
    -- Whoever was woken by what it does not take lets the next one know.
    rouse(base, 'takers', 1, ticks_us)
  elseif argv[4] ~= '' then
    enlist(base, 'takers', argv[4], ticks_us + tonumber(argv[5]), ticks_us)
  end
  -- What was put back is no news.
  q.news = 0
  finish(q)
  return { #found, more and 1 or 0, next_event(q, rate_wait_us(q)) }
end

local function counts(q)
  local base = q.base
  local leased = redis.call('ZCOUNT', base .. ':leases', '(' .. whole(q.ticks), '+inf')
  local delayed = redis.call('ZCOUNT', base .. ':delayed', '(' .. whole(q.now), '+inf')
  local ready = fresh_count(q) + redis.call('HLEN', base .. ':touched') - leased - delayed
  return { ready, delayed, leased, redis.call('ZCARD', base .. ':dead') }
end

local function count(base, _, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  finish(q)
  return counts(q)
end

-- Return what a lane's segments take up, by a look at a few of them.
local function lane_bytes(lane)
  if lane.count == 0 then return 0 end
  local segments = lane.tail - lane.head + 1
  local looked, bytes = 0, 0
  for number = lane.head, lane.tail, math.max(1, math.floor(segments / 8)) do
    bytes = bytes + (redis.call('MEMORY', 'USAGE', segment_key(lane, number)) or 0)
    looked = looked + 1
  end
  return bytes * segments / looked
end

-- Answer counts, ready by priority, paused, µs since the oldest was pushed (-1: none), leases as id,
-- state and µs left, totals, bytes.
local function stats(base, _, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  finish(q)
  local by_priority, bytes = {}, 0
  for _, lane in ipairs(lanes_of(q)) do
    local name = whole(lane.priority)
    local ready = lane.count + redis.call('ZCARD', base .. ':ready_' .. name)
      + tonumber(redis.call('HGET', q.meta, 'queue_' .. name .. ':held') or 0)
    if ready > 0 then
      by_priority[#by_priority + 1] = lane.priority
      by_priority[#by_priority + 1] = ready
    end
    bytes = bytes + lane_bytes(lane)
  end
  for _, name in ipairs({ 'metadata', 'touched', 'bodies', 'leases', 'delayed', 'letters', 'dead', 'kept' }) do
    bytes = bytes + (redis.call('MEMORY', 'USAGE', base .. ':' .. name) or 0)
  end
  local oldest = -1
  each_admitted(q, function(_, _, _, item)
    oldest = math.max(0, now_us - struct.unpack('>I8', item))
    return true
  end)
  local leases = {}
  local ending = redis.call('ZRANGE', base .. ':leases', 0, 99, 'WITHSCORES')
  for place = 1, #ending, 2 do
    leases[#leases + 1] = ending[place]
    leases[#leases + 1] = redis.call('HGET', base .. ':touched', ending[place])
    leases[#leases + 1] = tonumber(ending[place + 1]) - ticks_us
  end
  return { counts(q), by_priority, q.paused and 1 or 0, oldest, leases,
    redis.call('HGETALL', base .. ':totals'), math.floor(bytes) }
end

-- Tell whether a message that was touched stands at the front of the head, and not where it was pushed.
local function is_returned(s, lane)
  return s ~= nil and (lane == ASIDE or s.cause ~= HELD)
end

-- Answer the segment size, where each priority's first message that was never delivered is, and what
-- waits: priority, offset (-1 if it came back), item. All, or with 4:priority what 5:segment has of it.
local function state(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  finish(q)
  local size = q.rules.segment_size
  local cursors, waiting = {}, {}
  for _, lane in ipairs(lanes_of(q)) do
    cursors[#cursors + 1] = lane.priority
    cursors[#cursors + 1] = lane.next_offset - lane.count
  end
  local function show(_, s, lane, offset, priority, item)
    waiting[#waiting + 1] = priority
    waiting[#waiting + 1] = is_returned(s, lane) and -1 or offset
    waiting[#waiting + 1] = item
  end
  if not argv[4] then
    each_waiting(q, show)
  else
    local lane, number = lane_of(q, tonumber(argv[4])), tonumber(argv[5])
    local cursor = lane.next_offset - lane.count
    each_touched(q, lane.priority, function(id, s, home, offset, priority, item)
      local place = is_returned(s, home) and cursor or offset
      if math.floor(place / size) == number then show(id, s, home, offset, priority, item) end
    end)
    each_fresh(q, lane, number * size, (number + 1) * size, show)
  end
  return { size, cursors, waiting }
end

-- Answer the segment size, and of each priority in which something waits: itself, how many, the first
-- and the last segment. What is damaged counts until somebody meets it.
local function metadata(base, _, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  finish(q)
  local size, rows = q.rules.segment_size, {}
  for _, lane in ipairs(lanes_of(q)) do
    local cursor, count = lane.next_offset - lane.count, lane.count
    local first, last = math.huge, -1
    if count > 0 then first, last = cursor, lane.next_offset - 1 end
    each_touched(q, lane.priority, function(_, s, home, offset)
      local place = is_returned(s, home) and cursor or offset
      count, first, last = count + 1, math.min(first, place), math.max(last, place)
    end)
    if count > 0 then
      rows[#rows + 1] = lane.priority
      rows[#rows + 1] = count
      rows[#rows + 1] = math.floor(first / size)
      rows[#rows + 1] = math.floor(last / size)
    end
  end
  return { size, rows }
end

-- Return the item of a message that was never delivered.
local function fresh_item(q, lane, offset)
  local first = lane.next_offset - lane.count
  if offset < first or offset >= lane.next_offset then return nil end
  local number, start = segment_of(q, lane, offset)
  return redis.call('LINDEX', segment_key(lane, number), offset - math.max(first, start)) or nil
end

-- Add how a message stands: id, priority, state (empty if it was never touched), µs left, item.
local function add_status(q, answer, id, packed, priority, item)
  answer[#answer + 1] = id
  answer[#answer + 1] = priority
  answer[#answer + 1] = packed or ''
  local deadline = packed and redis.call('ZSCORE', q.base .. ':leases', id)
  answer[#answer + 1] = deadline and tonumber(deadline) - q.ticks or 0
  answer[#answer + 1] = item
end

-- Add how a message stands that is not settled or dead; nothing of one that is.
local function add_alive(q, answer, id)
  local packed, item = redis.call('HGET', q.base .. ':touched', id), redis.call('HGET', q.base .. ':bodies', id)
  if packed and item then
    local s = unpack_state(packed)
    add_status(q, answer, id, packed, s and s.priority or 0, item)
    return
  end
  local priority, offset = place_of(id)
  local fresh = priority ~= ASIDE and fresh_item(q, lane_of(q, priority), offset)
  if fresh then add_status(q, answer, id, nil, priority, fresh) end
end

-- Answer how the message 4:id stands, and its dead letter if it is one.
local function look_up(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  finish(q)
  local alive, letter = {}, {}
  add_alive(q, alive, argv[4])
  local dead = redis.call('HGET', base .. ':letters', argv[4])
  if dead and #alive == 0 then letter = { argv[4], dead } end
  return { alive, letter }
end

-- Answer how the messages 4… stand, those that are not settled or dead.
local function statuses(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  finish(q)
  local answer = {}
  for place = 4, #argv do add_alive(q, answer, argv[place]) end
  return answer
end

