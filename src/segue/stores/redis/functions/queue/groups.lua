-- Groups: in order, few at a time (delivery/message_groups.py in the same words).

local function bump(q, field, by)
  local key = q.base .. ':groups'
  if redis.call('HINCRBY', key, field, by) <= 0 then redis.call('HDEL', key, field) end
end

local function admits(q, group, is_started)
  local places = q.rules.group_concurrency
  local said = redis.call('HMGET', q.base .. ':groups', 'l' .. group, 's' .. group)
  local leased, started = tonumber(said[1] or 0), tonumber(said[2] or 0)
  return leased < places and (started < places or is_started)
end

-- Members sort as text: by priority, then by turn, those that came back (0) before the others (1).
local function held_member(s, id, turn)
  local is_later, place = 1, turn
  if turn < 0 then is_later, place = 0, turn - TURN_RETURNED end
  return string.format('%010d%d%016d', s.priority, is_later, place) .. id
end

local function turn_of(lane, offset, s)
  if lane == ASIDE then return math.max(1, s.not_before) end
  if s.cause == HELD then return TURN_NEW + offset end
  return TURN_RETURNED + offset
end

local function change_held(q, s, by)
  bump(q, 'h' .. s.group, by)
  redis.call('HINCRBY', q.meta, 'held', by)
  redis.call('HINCRBY', q.meta, 'queue_' .. whole(s.priority) .. ':held', by)
end

local function line_up(q, id, s)
  local lane, offset = place_of(id)
  local key = q.base .. ':ready_' .. whole(s.priority)
  set_in_line(q, redis.call('ZADD', key, turn_of(lane, offset, s), id))
  redis.call('ZADD', q.base .. ':lines', s.priority, s.priority)
  q.news = q.news + 1
end

-- Have a message wait where nobody meets it, until its group has a place for it.
local function hold_back(q, id, s)
  local lane, offset = place_of(id)
  s.kind = HELD_BACK
  save_state(q, id, s)
  redis.call('ZADD', q.base .. ':held_' .. s.group, 0, held_member(s, id, turn_of(lane, offset, s)))
  change_held(q, s, 1)
end

-- Have as many of a group stand in line again as it may have places for: the first by priority and
-- turn. The others could not come before them.
local function call_up(q, group)
  local leased = tonumber(redis.call('HGET', q.base .. ':groups', 'l' .. group) or 0)
  local room = q.rules.group_concurrency - leased
  if room <= 0 then return end
  local key = q.base .. ':held_' .. group
  for _, member in ipairs(redis.call('ZRANGE', key, 0, room - 1)) do
    local id = string.sub(member, 28)
    redis.call('ZREM', key, member)
    local s = state_of(q, id)
    if s then
      change_held(q, s, -1)
      s.kind = READY
      save_state(q, id, s)
      line_up(q, id, s)
      q.called = q.called + 1
    end
  end
end

-- Take a message out of its group for good.
local function leave_group(q, s)
  if not s.group then return end
  if s.kind == LEASED then bump(q, 'l' .. s.group, -1) end
  if s.started == 1 then bump(q, 's' .. s.group, -1) end
  call_up(q, s.group)
end

