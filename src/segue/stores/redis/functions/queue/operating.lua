-- Rules, pausing, purging, removing.

local function rules(base)
  return redis.call('HGET', base .. ':metadata', 'rules')
end

-- Have 4:rules hold from now on.
local function configure(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  local before = q.rules
  if redis.call('HGET', q.meta, 'rules') == argv[4] then return 0 end
  redis.call('HSET', q.meta, 'rules', argv[4])
  q.rules = rules_of(argv[4])
  local after = q.rules
  if after.rate ~= before.rate or after.rate_burst ~= before.rate_burst then
    redis.call('HDEL', q.meta, 'rate_due', 'rate_base')
  end
  if after.segment_size ~= before.segment_size then
    redis.call('HSET', q.meta, 'segment_size', after.segment_size)
    for _, lane in ipairs(lanes_of(q)) do cut_lane(q, lane, before.segment_size) end
  end
  for _, field in ipairs(redis.call('HKEYS', base .. ':groups')) do
    if string.sub(field, 1, 1) == 'h' then call_up(q, string.sub(field, 2)) end
  end
  if before.keeps and not after.keeps then
    redis.call('UNLINK', base .. ':kept', base .. ':kept_' .. whole(ASIDE))
    redis.call('HDEL', q.meta, 'kept_' .. whole(ASIDE) .. ':bytes')
    for _, lane in ipairs(lanes_of(q)) do
      redis.call('UNLINK', base .. ':kept_' .. whole(lane.priority))
      redis.call('HDEL', q.meta, 'kept_' .. whole(lane.priority) .. ':bytes')
    end
  end
  finish(q)
  rouse(base, 'takers', LOOKED_MAX, ticks_us)
  rouse(base, 'pushers', LOOKED_MAX, ticks_us)
  return 1
end

-- Pause (4:1) or resume (4:0).
local function pause(base, argv, _, ticks_us)
  redis.call('HSET', base .. ':metadata', 'paused', argv[4])
  if argv[4] == '0' then rouse(base, 'takers', LOOKED_MAX, ticks_us) end
  return 1
end

-- Drop all that is ready or delayed and answer how much that was.
local function purge(base, _, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  local purged = 0
  for _, lane in ipairs(lanes_of(q)) do
    if q.rules.keeps then
      while lane.count > 0 do
        local first = lane.next_offset - lane.count
        local items = take_fresh(lane, LOOKED_MAX)
        if not items then break end
        for number, item in ipairs(items) do keep(q, lane.priority, first + number - 1, item) end
        purged = purged + #items
      end
    else
      for number = lane.head, lane.tail do redis.call('UNLINK', segment_key(lane, number)) end
      purged = purged + lane.count
      lane.count = 0
    end
    leave_drained(q, lane)
    save_lane(q, lane)
  end
  for _, id in ipairs(redis.call('HKEYS', base .. ':touched')) do
    local s = state_of(q, id)
    if not s then
      drop_damaged(q, id)
    elseif s.kind ~= LEASED then
      settle(q, id, s)
      purged = purged + 1
    end
  end
  add_total(q, 'purged', purged)
  q.room = q.room + purged
  finish(q)
  return purged
end

-- Delete the queue. Its tokens go on where they were if it is made anew.
local function remove(base)
  local q = open(base, 0, 0)
  local is_there = redis.call('EXISTS', q.meta)
  for _, lane in ipairs(lanes_of(q)) do
    local name = whole(lane.priority)
    for number = lane.head, lane.tail do redis.call('UNLINK', segment_key(lane, number)) end
    redis.call('UNLINK', base .. ':ready_' .. name, base .. ':kept_' .. name)
  end
  for _, field in ipairs(redis.call('HKEYS', base .. ':groups')) do
    if string.sub(field, 1, 1) == 'h' then redis.call('UNLINK', base .. ':held_' .. string.sub(field, 2)) end
  end
  for _, name in ipairs({ 'metadata', 'lanes', 'lines', 'touched', 'bodies', 'delayed', 'leases', 'groups',
    'dead', 'letters', 'kept', 'kept_' .. whole(ASIDE), 'totals' }) do
    redis.call('UNLINK', base .. ':' .. name)
  end
  local last = math.max(q.token, tonumber(q.generation or 0))
  if last > 0 then redis.call('SET', base .. ':token', whole(last), 'PX', TOKEN_KEPT_MS) end
  rouse(base, 'takers', LOOKED_MAX, 0)
  rouse(base, 'pushers', LOOKED_MAX, 0)
  return is_there
end

