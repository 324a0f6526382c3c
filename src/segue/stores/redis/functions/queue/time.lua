-- What happens by itself, what is told to whom, and how much may be delivered now.

-- Give back what leases that have ended held.
local function tend_leases(q)
  local ended = redis.call('ZRANGEBYSCORE', q.base .. ':leases', '-inf', whole(q.ticks), 'LIMIT', 0, LOOKED_MAX)
  for _, id in ipairs(ended) do
    local s = state_of(q, id)
    if not s then
      drop_damaged(q, id)
    elseif is_last(q, s) then
      bury(q, id, s, EXPIRED, 'its lease expired')
    else
      give_back(q, id, s, EXPIRED, 0, 'its lease expired')
    end
  end
  local first = redis.call('ZRANGE', q.base .. ':leases', 0, 0, 'WITHSCORES')
  q.lease_first = tonumber(first[2] or '')
  set(q, 'lease_first', q.lease_first and whole(q.lease_first) or '')
end

-- Let come what is due.
local function tend_delayed(q)
  local due = redis.call('ZRANGEBYSCORE', q.base .. ':delayed', '-inf', whole(q.now), 'LIMIT', 0, LOOKED_MAX)
  for _, id in ipairs(due) do
    redis.call('ZREM', q.base .. ':delayed', id)
    local s = state_of(q, id)
    if s then
      s.kind = READY
      save_state(q, id, s)
      line_up(q, id, s)
    else
      drop_damaged(q, id)
    end
  end
  local first = redis.call('ZRANGE', q.base .. ':delayed', 0, 0, 'WITHSCORES')
  q.delayed_first = tonumber(first[2] or '')
  set(q, 'delayed_first', q.delayed_first and whole(q.delayed_first) or '')
end

local function tend(q)
  if q.lease_first and q.lease_first <= q.ticks then tend_leases(q) end
  if q.delayed_first and q.delayed_first <= q.now then tend_delayed(q) end
end

-- Return in how many µs something may happen by itself; -1 if nothing will.
local function next_event(q, rate_wait_us)
  local soonest = rate_wait_us
  local lease = redis.call('ZRANGE', q.base .. ':leases', 0, 0, 'WITHSCORES')
  if #lease > 0 then
    local left = math.max(0, tonumber(lease[2]) - q.ticks)
    if soonest == nil or left < soonest then soonest = left end
  end
  local due = redis.call('ZRANGE', q.base .. ':delayed', 0, 0, 'WITHSCORES')
  if #due > 0 then
    local left = math.max(0, tonumber(due[2]) - q.now)
    if soonest == nil or left < soonest then soonest = left end
  end
  return soonest and math.ceil(soonest) or -1
end

-- Write what was changed, and tell whoever waits for what this call has brought about.
local function finish(q)
  if q.trims then
    for lane in pairs(q.trims) do trim_kept(q, lane) end
    q.trims = nil
  end
  local is_counted = false
  for _, lane in pairs(q.lanes) do
    if lane.is_changed then
      local name = lane.name
      set(q, name .. ':count', lane.count)
      set(q, name .. ':next_offset', whole(lane.next_offset))
      set(q, name .. ':head_segment', whole(lane.head))
      set(q, name .. ':tail_segment', whole(lane.tail))
      set(q, name .. ':tail_count', lane.tail_count)
      lane.is_changed = false
      if lane.count ~= lane.count_before then
        q.fresh, lane.count_before = q.fresh + lane.count - lane.count_before, lane.count
        is_counted = true
      end
    end
  end
  if is_counted then set(q, 'fresh', q.fresh) end
  if q.is_line_changed then
    set(q, 'in_line', q.in_line)
    q.is_line_changed = false
  end
  if #q.changes > 0 then
    call_many('HSET', q.meta, q.changes)
    q.changes = {}
  end
  if q.news > 0 then
    rouse(q.base, 'takers', q.news, q.ticks)
    q.news = 0
  end
  if q.room > 0 then
    if q.rules.capacity then rouse(q.base, 'pushers', q.room, q.ticks) end
    if q.rules.max_leases then rouse(q.base, 'takers', q.room, q.ticks) end
    q.room = 0
  end
end

-- Do what is due by itself; false if that was more than one call may do, and the caller should come
-- again: what it would say would not be true.
local function tended(q)
  tend(q)
  if not (q.lease_first and q.lease_first <= q.ticks)
    and not (q.delayed_first and q.delayed_first <= q.now) then
    return true
  end
  finish(q)
  return false
end

-- Rates: delivery/rate.py in the same words. Nanoseconds behind `rate_base`, or they would be too
-- large for the numbers here.

local function rate_of(q)
  local said = redis.call('HMGET', q.meta, 'rate_due', 'rate_base')
  local base = tonumber(said[2] or q.ticks)
  local now_ns = (q.ticks - base) * 1000
  local due_ns = tonumber(said[1] or -1)
  local interval = q.rules.interval_ns
  if not (now_ns < due_ns and due_ns <= now_ns + q.rules.rate_burst * interval) then
    due_ns = now_ns
  end
  return { base = base, now = now_ns, due = due_ns, interval = interval,
    latest = now_ns + (q.rules.rate_burst - 1) * interval }
end

local function allowed_by_rate(q, most)
  if not q.rules.rate then return most end
  local rate = rate_of(q)
  q.rate = rate
  return math.min(most, math.max(0, math.floor((rate.latest - rate.due) / rate.interval) + 1))
end

local function meter(q, count)
  local rate = q.rate
  if not rate or count == 0 then return end
  redis.call('HSET', q.meta, 'rate_due', whole(rate.due + count * rate.interval), 'rate_base', whole(rate.base))
end

local function rate_wait_us(q)
  if not q.rules.rate then return nil end
  local rate = rate_of(q)
  local wait = math.max(0, rate.due - rate.latest)
  return wait > 0 and wait / 1000 or nil
end

-- Return how many may be leased now, or nil and the refusal.
local function allowed(q, most)
  local leases_max = q.rules.max_leases
  if leases_max then
    local leased = redis.call('ZCARD', q.base .. ':leases')
    if leased >= leases_max then
      local first = redis.call('ZRANGE', q.base .. ':leases', 0, 0, 'WITHSCORES')
      local left = math.max(0, tonumber(first[2]) - q.ticks)
      return nil, redis.error_reply('SEGUELOCKED ' .. whole(leases_max) .. ' ' .. whole(left))
    end
    most = math.min(most, leases_max - leased)
  end
  return allowed_by_rate(q, most)
end

