-- How messages leave: kept, dead, or given back.

local function trim_kept(q, lane)
  local rules = q.rules
  local key = q.base .. ':kept_' .. whole(lane)
  local bytes_field = 'kept_' .. whole(lane) .. ':bytes'
  local bytes = tonumber(redis.call('HGET', q.meta, bytes_field) or 0)
  for _ = 1, LOOKED_MAX do
    local offset = redis.call('ZRANGE', key, 0, 0)[1]
    if not offset then return end
    local id = id_of(lane, tonumber(offset))
    local item = redis.call('HGET', q.base .. ':kept', id)
    local is_old = not item or (rules.keep_seconds ~= nil
      and q.now - struct.unpack('>I8', item) > rules.keep_seconds * 1e6)
    local is_much = rules.keep_bytes ~= nil and bytes > rules.keep_bytes
    if rules.keeps and not is_old and not is_much then return end
    redis.call('ZREM', key, offset)
    redis.call('HDEL', q.base .. ':kept', id)
    bytes = redis.call('HINCRBY', q.meta, bytes_field, -#(item or ''))
  end
end

-- Keep a settled message readable, where the rules say so.
local function keep(q, lane, offset, item)
  if not q.rules.keeps or not item then return end
  if redis.call('HSET', q.base .. ':kept', id_of(lane, offset), item) == 0 then return end
  redis.call('ZADD', q.base .. ':kept_' .. whole(lane), whole(offset), whole(offset))
  redis.call('HINCRBY', q.meta, 'kept_' .. whole(lane) .. ':bytes', #item)
  q.trims = q.trims or {}
  q.trims[lane] = true
end

-- Take out what comes to life again: it is told once.
local function unkeep(q, id)
  local item = redis.call('HGET', q.base .. ':kept', id)
  if not item then return end
  local lane, offset = place_of(id)
  redis.call('HDEL', q.base .. ':kept', id)
  redis.call('ZREM', q.base .. ':kept_' .. whole(lane), whole(offset))
  redis.call('HINCRBY', q.meta, 'kept_' .. whole(lane) .. ':bytes', -#item)
end

-- Forget a message that is done with, whatever it was doing.
local function settle(q, id, s, item)
  local base = q.base
  if s.kind == LEASED then
    redis.call('ZREM', base .. ':leases', id)
  elseif s.kind == READY then
    set_in_line(q, -redis.call('ZREM', base .. ':ready_' .. whole(s.priority), id))
  elseif s.kind == DELAYED then
    redis.call('ZREM', base .. ':delayed', id)
  else
    local lane, offset = place_of(id)
    redis.call('ZREM', base .. ':held_' .. s.group, held_member(s, id, turn_of(lane, offset, s)))
    change_held(q, s, -1)
  end
  if q.rules.keeps then
    local lane, offset = place_of(id)
    keep(q, lane, offset, item or item_of(q, id))
  end
  redis.call('HDEL', base .. ':touched', id)
  redis.call('HDEL', base .. ':bodies', id)
  leave_group(q, s)
  q.room = q.room + 1
end

local function add_letter(q, id, priority, attempt, since, cause, text, item)
  local number = redis.call('HINCRBY', q.meta, 'dead:next_number', 1) - 1
  if string.byte(item, 9) % 2 == 1 then
    local flags = string.byte(item, 9)
    if math.floor(flags / 4) % 2 == 0 then flags = flags + 4 end
    item = string.sub(item, 1, 8) .. string.char(flags) .. string.sub(item, 10)
  end
  redis.call('HSET', q.base .. ':letters', id, struct.pack(LETTER, number, q.now, priority, attempt,
    since, cause, #text) .. text .. item)
  redis.call('ZADD', q.base .. ':dead', whole(number), id)
  add_total(q, 'buried', 1)
end

local function bury(q, id, s, cause, text)
  local item = item_of(q, id)
  if item then add_letter(q, id, s.priority, s.attempt, s.since, cause, text, item) end
  settle(q, id, s, item)
end

local function is_last(q, s)
  local most = q.rules.max_deliveries
  return most ~= nil and s.attempt - s.since >= most
end

-- Give a leased message back, to be had at once or when it is due.
local function give_back(q, id, s, cause, not_before, text)
  redis.call('ZREM', q.base .. ':leases', id)
  if s.group then bump(q, 'l' .. s.group, -1) end
  if cause == RELEASED then s.attempt = s.attempt - 1 end
  s.cause, s.text, s.not_before, s.token = cause, text, not_before, 0
  if not_before > 0 then
    s.kind = DELAYED
    redis.call('ZADD', q.base .. ':delayed', whole(not_before), id)
    note_due(q, not_before)
  else
    s.kind = READY
    line_up(q, id, s)
  end
  save_state(q, id, s)
  if s.group then call_up(q, s.group) end
  add_total(q, RETURNED_AS[cause], 1)
end

