-- Taking messages: by lease, or for good.

-- A message whose time to live was over when its turn came.
local function outlive(q, id, s, item)
  if q.rules.on_expiry == 'drop' then
    add_total(q, 'outlived', 1)
  else
    add_letter(q, id, s.priority, s.attempt, s.since, OUTLIVED, 'its time to live was over', item)
  end
end

local function fresh_state(priority, group)
  return { kind = READY, started = 0, token = 0, attempt = 0, since = 0, priority = priority,
    not_before = 0, cause = HELD, group = group, text = '' }
end

-- Take one message that is in line, or deal with one that cannot be taken. Returns a delivery, and
-- whether there was anything.
local function take_returned(q, priority, settles)
  if q.in_line == 0 then return nil, false end
  local first = redis.call('ZPOPMIN', q.base .. ':ready_' .. whole(priority))
  if #first == 0 then return nil, false end
  set_in_line(q, -1)
  local id = first[1]
  local s, item = state_of(q, id), item_of(q, id)
  if not s or not item then
    drop_damaged(q, id)
    return nil, true
  end
  if s.group and not admits(q, s.group, s.started == 1) then
    hold_back(q, id, s)
    return nil, true
  end
  local lane, offset = place_of(id)
  if is_over(q, item) then
    outlive(q, id, s, item)
    settle(q, id, s, item)
    return nil, true
  end
  local delivery = { lane = lane, first = offset, attempt = s.attempt + 1, since = s.since,
    priority = priority, items = { item }, ids = { id } }
  if settles then
    settle(q, id, s, item)
  else
    if s.group then
      bump(q, 'l' .. s.group, 1)
      if s.started == 0 then bump(q, 's' .. s.group, 1) end
    end
    delivery.was_started = s.started
    s.kind, s.started, s.attempt = LEASED, 1, s.attempt + 1
    delivery.state = s
  end
  return delivery, true
end

-- Take up to `most` neighbours that were never delivered, no more than `bytes` but for one. Returns a
-- delivery, how many were looked at, and whether the lane must wait for the groups of those before.
local function take_from_lane(q, lane, most, bytes, settles)
  local priority = lane.priority
  local first = lane.next_offset - lane.count
  local items = take_fresh(lane, most)
  if not items then return nil, 0, false end
  local taken, start = {}, first
  for place, item in ipairs(items) do
    bytes = bytes - #item
    if bytes < 0 and #taken > 0 then
      untake_fresh(lane, items, place)
      break
    end
    local flags, _, _, last = string.byte(item, 9, 12)
    if not last or (flags > 0 and not is_sound(item)) then
      if #taken > 0 then
        untake_fresh(lane, items, place)
        break
      end
      add_total(q, 'damaged', 1)
      q.room = q.room + 1
      start = first + place
    elseif flags % 2 == 1 or flags >= 8 then
      local offset = first + place - 1
      local id = id_of(priority, offset)
      local group = group_of(item)
      local is_held = group and not admits(q, group, false)
      local special = is_held or is_over(q, item) or group
      if special and #taken > 0 then
        untake_fresh(lane, items, place)
        break
      end
      if is_held then
        if tonumber(redis.call('HGET', q.meta, 'held') or 0) >= HELD_MAX then
          untake_fresh(lane, items, place)
          return nil, 0, true
        end
        redis.call('HSET', q.base .. ':bodies', id, item)
        hold_back(q, id, fresh_state(priority, group))
        start = offset + 1
      elseif is_over(q, item) then
        outlive(q, id, fresh_state(priority, nil), item)
        keep(q, priority, offset, item)
        q.room = q.room + 1
        start = offset + 1
      elseif group then
        untake_fresh(lane, items, place + 1)
        local delivery = { lane = priority, first = offset, attempt = 1, since = 0,
          priority = priority, items = { item }, ids = { id }, segment = lane.head }
        if not settles then
          bump(q, 'l' .. group, 1)
          bump(q, 's' .. group, 1)
          local s = fresh_state(priority, group)
          s.kind, s.started, s.attempt = LEASED, 1, 1
          delivery.state = s
        else
          keep(q, priority, offset, item)
          q.room = q.room + 1
        end
        return delivery, place, false
      else
        taken[#taken + 1] = item
      end
    else
      taken[#taken + 1] = item
    end
  end
  if #taken == 0 then return nil, #items, false end
  if settles then
    for place, item in ipairs(taken) do keep(q, priority, start + place - 1, item) end
    q.room = q.room + #taken
  end
  return { lane = priority, first = start, attempt = 1, since = 0, priority = priority,
    items = taken, segment = lane.head }, #items, false
end

-- Return what to deliver next, and whether there may be more than could be looked at.
local function take(q, most, settles)
  local out = {}
  if q.paused then return out, false end
  local looked, bytes = 0, PORTION_BYTES_MAX
  local full = {}
  -- None is more urgent than 0: where that seems to have enough, the others are not asked for yet.
  local is_short = q.in_line == 0 and q.lanes[0].count >= most
  while most > 0 do
    local progressed = false
    local lines = is_short and { 0 } or redis.call('ZRANGE', q.base .. ':lines', 0, -1)
    for _, said in ipairs(lines) do
      local priority = tonumber(said)
      local called = q.called
      local delivery, found
      repeat
        delivery, found = take_returned(q, priority, settles)
        if found then progressed, looked = true, looked + 1 end
        if delivery then
          out[#out + 1] = delivery
          most, bytes = most - 1, bytes - #delivery.items[1]
          if bytes <= 0 then most = 0 end
        end
      until not found or most == 0 or looked > LOOKED_MAX or q.called ~= called
      -- Who was called up, because another has left its group, may come before all the rest.
      if most == 0 or looked > LOOKED_MAX or q.called ~= called then break end
      local lane = lane_of(q, priority)
      local changed = false
      while most > 0 and lane.count > 0 and not full[priority] and looked <= LOOKED_MAX do
        local size, is_full
        delivery, size, is_full = take_from_lane(q, lane, most, bytes, settles)
        looked = looked + (delivery and 1 or size)
        changed = true
        if is_full then
          full[priority] = true
        elseif delivery then
          out[#out + 1] = delivery
          most = most - #delivery.items
          for _, item in ipairs(delivery.items) do bytes = bytes - #item end
          if bytes <= 0 then most = 0 end
          progressed = true
        end
        if q.called ~= called then
          progressed = true
          break
        end
      end
      if changed then
        leave_drained(q, lane)
        save_lane(q, lane)
      end
      if lane.count == 0 and redis.call('EXISTS', q.base .. ':ready_' .. whole(priority)) == 0 then
        redis.call('ZREM', q.base .. ':lines', priority)
      end
      if most == 0 or q.called ~= called or looked > LOOKED_MAX then break end
    end
    if looked > LOOKED_MAX or not (progressed or is_short) then break end
    is_short = false
  end
  return out, looked > LOOKED_MAX
end

-- Flatten deliveries for an answer.
local function add_deliveries(answer, deliveries)
  for _, each in ipairs(deliveries) do
    answer[#answer + 1] = each.lane
    answer[#answer + 1] = each.first
    answer[#answer + 1] = #each.items
    answer[#answer + 1] = each.attempt
    answer[#answer + 1] = each.since
    answer[#answer + 1] = each.priority
    for _, item in ipairs(each.items) do answer[#answer + 1] = item end
  end
  return answer
end

local function next_token(q)
  -- By the clock, so that none is given twice even if a failover loses the last ones.
  q.token = math.max(q.token + 1, q.now)
  set(q, 'token', whole(q.token))
  return q.token
end

local function ttl_of(q, given)
  if given == '' then return math.floor(q.rules.lease_ttl * 1e6 + 0.5) end
  local ttl = tonumber(given)
  local least, most = 1000, 7 * 86400e6
  if q.rules.is_strict then least, most = 1e6, 300e6 end
  if ttl < least or ttl > most then return nil end
  return ttl
end

-- Lease up to 4:count for 5:ttl µs (empty: as the rules say) to 6:owner. 7:waiter is woken within
-- 8:µs if there is nothing. Answers token, ttl, more?, µs to the next event, deliveries.
local function lease(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  local ttl = ttl_of(q, argv[5])
  if not ttl then
    finish(q)
    return redis.error_reply('SEGUETTL')
  end
  local owner, waiter = argv[6], argv[7]
  local most, refusal = allowed(q, tonumber(argv[4]))
  local deliveries, more = {}, false
  if most then deliveries, more = take(q, most, false) end
  if #deliveries == 0 then
    finish(q)
    if waiter ~= '' then enlist(base, 'takers', waiter, ticks_us + tonumber(argv[8]), ticks_us) end
    if refusal then return refusal end
    return { 0, ttl, more and 1 or 0, next_event(q, rate_wait_us(q)) }, { 0, ttl, {} }
  end
  local token = next_token(q)
  local states, bodies, ends, runs = {}, {}, {}, {}
  local deadline = ticks_us + ttl
  local deadline_text = whole(deadline)
  local size = 0
  for _, each in ipairs(deliveries) do
    local s = each.state or fresh_state(each.priority, nil)
    if not each.state then s.kind, s.started, s.attempt = LEASED, 1, 1 end
    s.token, s.text = token, owner
    local packed = pack_state(s)
    local prefix = each.lane ~= ASIDE and whole(each.lane) .. '-'
    local first = each.first - 1
    for place, item in ipairs(each.items) do
      local id = prefix and prefix .. whole(first + place) or each.ids[place]
      states[size + 1], states[size + 2] = id, packed
      bodies[size + 1], bodies[size + 2] = id, item
      ends[size + 1], ends[size + 2] = deadline_text, id
      size = size + 2
    end
    runs[#runs + 1] = each.lane
    runs[#runs + 1] = each.first
    runs[#runs + 1] = #each.items
  end
  call_many('HSET', base .. ':touched', states)
  call_many('HSET', base .. ':bodies', bodies)
  call_many('ZADD', base .. ':leases', ends)
  note_lease_end(q, deadline)
  meter(q, size / 2)
  finish(q)
  if waiter ~= '' then delist(base, 'takers', waiter) end
  return add_deliveries({ token, ttl, 0, -1 }, deliveries), { token, ttl, runs }
end

-- Answer a lease again: with what of it is still held.
local function recall_lease(base, memory)
  local q = { base = base }
  local answer = { memory[1], memory[2], 0, -1 }
  local runs = memory[3]
  for place = 1, #runs, 3 do
    local lane, first = runs[place], runs[place + 1]
    for offset = first, first + runs[place + 2] - 1 do
      local id = id_of(lane, offset)
      local s = state_of(q, id)
      if s and s.kind == LEASED and s.token == memory[1] then
        add_deliveries(answer, { { lane = lane, first = offset, attempt = s.attempt,
          since = s.since, priority = s.priority, items = { item_of(q, id) } } })
      end
    end
  end
  return answer
end

-- Take up to 4:count for good. 5:waiter is woken within 6:µs. Answers as `lease` does.
local function pop(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  local waiter = argv[5]
  local most, refusal = tonumber(argv[4]), nil
  if q.rules.is_strict then
    local may
    may, refusal = allowed(q, most)
    if not may then
      finish(q)
      if waiter ~= '' then enlist(base, 'takers', waiter, ticks_us + tonumber(argv[6]), ticks_us) end
      return refusal
    end
  end
  local deliveries, more = take(q, allowed_by_rate(q, most), true)
  local count = 0
  for _, each in ipairs(deliveries) do count = count + #each.items end
  meter(q, count)
  add_total(q, 'popped', count)
  finish(q)
  if count == 0 then
    if waiter ~= '' then enlist(base, 'takers', waiter, ticks_us + tonumber(argv[6]), ticks_us) end
    return { 0, 0, more and 1 or 0, next_event(q, rate_wait_us(q)) }
  end
  if waiter ~= '' then delist(base, 'takers', waiter) end
  return add_deliveries({ 0, 0, 0, -1 }, deliveries)
end

