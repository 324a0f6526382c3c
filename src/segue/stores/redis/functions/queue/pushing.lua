-- Pushing.

-- From its first message on a queue is there.
local function begin(q)
  if q.generation then return end
  -- Above all tokens and the generation of a queue that was removed.
  local before = tonumber(redis.call('GET', q.base .. ':token') or 0)
  q.token = math.max(q.token, before)
  q.generation = whole(math.max(q.now, q.token + 1))
  set(q, 'generation', q.generation)
  set(q, 'token', whole(q.token))
  set(q, 'segment_size', q.rules.segment_size)
end

local function lanes_of(q)
  local lanes = {}
  for _, priority in ipairs(redis.call('ZRANGE', q.base .. ':lanes', 0, -1)) do
    lanes[#lanes + 1] = lane_of(q, tonumber(priority))
  end
  return lanes
end

-- Return how many messages were never delivered, what this call has changed included.
local function fresh_count(q)
  local count = q.fresh
  for _, lane in pairs(q.lanes) do count = count + lane.count - lane.count_before end
  return count
end

-- Return those of a priority that wait for their groups, by turn.
local function held_of(q, priority)
  local entries = {}
  local held = redis.call('HGET', q.meta, 'queue_' .. whole(priority) .. ':held')
  if not held or tonumber(held) == 0 then return entries end
  local mark = string.format('%010d', priority)
  for _, field in ipairs(redis.call('HKEYS', q.base .. ':groups')) do
    if string.sub(field, 1, 1) == 'h' then
      local key = q.base .. ':held_' .. string.sub(field, 2)
      for _, member in ipairs(redis.call('ZRANGEBYLEX', key, '[' .. mark, '(' .. mark .. ':')) do
        entries[#entries + 1] = member
      end
    end
  end
  table.sort(entries)
  return entries
end

-- Visit who is in line in a priority, and who of it waits for others of its group, by turn, until
-- `visit(id)` says true. It must not change the line.
local function each_in_line(q, priority, visit)
  local held, following = held_of(q, priority), 1
  local first = 0
  repeat
    local ready = redis.call('ZRANGE', q.base .. ':ready_' .. whole(priority), first,
      first + SLICE - 1, 'WITHSCORES')
    for place = 1, #ready, 2 do
      local id = ready[place]
      local member = held_member({ priority = priority }, id, tonumber(ready[place + 1]))
      while held[following] and held[following] < member do
        if visit(string.sub(held[following], 28)) then return true end
        following = following + 1
      end
      if visit(id) then return true end
    end
    first = first + SLICE
  until #ready < 2 * SLICE
  for place = following, #held do
    if visit(string.sub(held[place], 28)) then return true end
  end
  return false
end

-- Drop the messages that have waited longest, from the least urgent priority on.
local function drop(q, count)
  local ready = fresh_count(q) + redis.call('HLEN', q.base .. ':touched')
    - redis.call('ZCARD', q.base .. ':leases') - redis.call('ZCARD', q.base .. ':delayed')
  if count > ready then return false end
  local dropped = 0
  local priorities = redis.call('ZRANGE', q.base .. ':lanes', 0, -1)
  for place = #priorities, 1, -1 do
    local priority = tonumber(priorities[place])
    local going = {}
    each_in_line(q, priority, function(id)
      going[#going + 1] = id
      return #going == count - dropped
    end)
    for _, id in ipairs(going) do
      local s = state_of(q, id)
      if s then
        settle(q, id, s)
        dropped = dropped + 1
      end
    end
    local lane = lane_of(q, priority)
    while dropped < count and lane.count > 0 do
      local first = lane.next_offset - lane.count
      local items = take_fresh(lane, count - dropped)
      if not items then break end
      for number, item in ipairs(items) do keep(q, priority, first + number - 1, item) end
      dropped = dropped + #items
    end
    leave_drained(q, lane)
    save_lane(q, lane)
    if dropped == count then break end
  end
  add_total(q, 'dropped', dropped)
  return dropped == count
end

-- Return nil if `count` messages fit, after dropping others where the rules say so; else the
-- refusal. Who may wait is noted.
local function make_space(q, count, waiter, step)
  local rules = q.rules
  if not rules.capacity then return nil end
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  local missing = fresh_count(q) + redis.call('HLEN', q.base .. ':touched') + count - rules.capacity
  if missing <= 0 then return nil end
  if count <= rules.capacity then
    if rules.on_full == 'block' then
      finish(q)
      if waiter ~= '' then enlist(q.base, 'pushers', waiter, q.ticks + tonumber(step), q.ticks) end
      return redis.error_reply('SEGUEWAIT ' .. whole(rules.capacity) .. ' '
        .. whole(next_event(q, nil)))
    end
    if rules.on_full == 'drop_oldest' and drop(q, missing) then return nil end
  end
  finish(q)
  return redis.error_reply('SEGUEFULL ' .. whole(rules.capacity))
end

-- Push bodies that need nothing looked at to 6:priority. 4:waiter may wait for 5:µs where the queue
-- is full. Answers the offset of the first.
local function push_plain(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  local refusal = make_space(q, #argv - 6, argv[4], argv[5])
  if refusal then return refusal end
  begin(q)
  local head = struct.pack('>I8I4', now_us, 0)
  local items = {}
  for place = 7, #argv do items[place - 6] = head .. argv[place] end
  local first = append_fresh(q, tonumber(argv[6]), items)
  finish(q)
  return first
end

local function key_holder(q, digest)
  local said = redis.call('GET', q.base .. ':key_' .. digest)
  if not said then return nil end
  local generation, until_us, id = string.match(said, '^(%d+) (%d+) (.+)$')
  if generation ~= q.generation or tonumber(until_us) <= q.now then return nil end
  return id
end

local function note_key(q, digest, id)
  local window_us = math.floor(q.rules.dedup_window * 1e6 + 0.5)
  local said = q.generation .. ' ' .. whole(q.now + window_us) .. ' ' .. id
  local key = q.base .. ':key_' .. digest
  -- The server forgets it in its own time; whoever asks goes by what is written in it.
  redis.call('SET', key, said, 'PX', whole(math.ceil(window_us / 1000) + 1000))
end

-- Push messages, each as priority, delay µs, ttl µs, digest of the key or nothing, and attr with
-- what follows it. 4:waiter and 5:µs as above. Answers their ids.
local function push(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  local ids, digests, fresh = {}, {}, {}
  for place = 6, #argv, 5 do
    local digest = argv[place + 3]
    local number = (place - 1) / 5
    if digest == '' then
      fresh[#fresh + 1] = number
    else
      ids[number] = key_holder(q, digest)
      if not ids[number] and not digests[digest] then
        digests[digest] = number
        fresh[#fresh + 1] = number
      end
    end
  end
  if #fresh > 0 then
    local refusal = make_space(q, #fresh, argv[4], argv[5])
    if refusal then return refusal end
    begin(q)
  end
  local runs, order = {}, {}
  local later = 0
  for _, number in ipairs(fresh) do
    local place = number * 5 + 1
    local priority, delay, ttl = tonumber(argv[place]), tonumber(argv[place + 1]), tonumber(argv[place + 2])
    local data = argv[place + 4]
    local item = struct.pack('>I8', now_us) .. string.sub(data, 1, 4)
      .. (ttl > 0 and struct.pack('>I8', now_us + ttl) or '') .. string.sub(data, 5)
    if delay > 0 then
      local offset = redis.call('HINCRBY', q.meta, 'later:next_offset', 1) - 1
      local id = id_of(ASIDE, offset)
      local s = fresh_state(priority, group_of(item))
      s.kind, s.not_before, s.cause = DELAYED, now_us + delay, RELEASED
      save_state(q, id, s)
      redis.call('HSET', base .. ':bodies', id, item)
      redis.call('ZADD', base .. ':delayed', whole(s.not_before), id)
      note_due(q, s.not_before)
      local lane = lane_of(q, priority)
      if lane.is_new then save_lane(q, lane) end
      ids[number] = id
      later = later + 1
    else
      if not runs[priority] then
        runs[priority] = { items = {}, numbers = {} }
        order[#order + 1] = priority
      end
      local run = runs[priority]
      run.items[#run.items + 1] = item
      run.numbers[#run.numbers + 1] = number
    end
  end
  for _, priority in ipairs(order) do
    local run = runs[priority]
    local first = append_fresh(q, priority, run.items)
    for place, number in ipairs(run.numbers) do ids[number] = id_of(priority, first + place - 1) end
  end
  for digest, number in pairs(digests) do note_key(q, digest, ids[number]) end
  for place = 6, #argv, 5 do
    local number = (place - 1) / 5
    if not ids[number] then ids[number] = ids[digests[argv[place + 3]]] end
  end
  -- Who waits for what is due next must look again.
  if later > 0 then q.news = q.news + later end
  finish(q)
  return ids
end

