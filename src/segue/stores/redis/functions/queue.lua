-- A queue on the server: priorities, leases, delays, groups, dead letters.
--
-- Keys, each behind <base> = <namespace>:{queue:<name>}
--
--   :metadata            HASH    rules                 how it behaves, JSON; none for the default
--                                paused                1 while nothing is delivered
--                                generation            when its first message was pushed, µs
--                                segment_size          how many items a segment takes
--                                queue_<p>:count       messages of a priority never delivered
--                                queue_<p>:next_offset the offset of the next one to be pushed
--                                queue_<p>:head_segment, :tail_segment
--                                                      the first and last segment there is
--                                queue_<p>:tail_count  how many were ever put in the last one
--                                queue_<p>:recut       1 if segments are not all of one size
--                                queue_<p>:held        messages that wait for others of their group
--                                later:next_offset     the same of what is pushed with a delay
--                                dead:next_number      the number of the next dead letter
--                                token                 the token given last
--                                lease_first           no lease ends before, µs of ticks
--                                delayed_first         nothing is due before, µs since 1970
--                                in_line               how many ids all :ready_<p> have together
--                                rate_due, rate_base   when the next one is due by the rate, in ns
--                                                      behind a moment, and that moment, µs of ticks
--                                held                  messages that wait for others of their group
--                                kept_<lane>:bytes     what is kept of settled messages
--   :queue_<p>_seg_<n>   LIST    items never delivered; gone when empty
--   :lanes               ZSET    the priorities that were ever used
--   :lines               ZSET    those that have something to deliver
--   :touched             HASH    id → how a message stands that was taken, or came back, or waits
--   :bodies              HASH    id → its item
--   :ready_<p>           ZSET    ids that can be delivered again, by their turn
--   :delayed             ZSET    ids by when they are due, µs since 1970
--   :leases              ZSET    ids by when their leases end, µs of ticks
--   :groups              HASH    l<group> leased, s<group> have a place, h<group> wait
--   :held_<group>        ZSET    <priority><turn><id> of those that wait for others of a group
--   :dead                ZSET    ids of dead letters by number
--   :letters             HASH    id → dead letter
--   :key_<digest>        STRING  what a deduplication key stands for
--   :kept_<lane>         ZSET    offsets of settled messages that are kept
--   :kept                HASH    id → item
--   :totals              HASH    what happened how often
--   :token               STRING  no token or generation of a removed queue is above
--
-- An item is  time µs (8) · attr (4) · expires µs (8, if it does) · group (16, if any) · prefix · body
-- with the attr of delivery/message.py. An id is <priority>-<offset>, or later-<16 digits>.

local DEFAULT_RULES = '@DEFAULT_RULES@'
local RULES_CACHED = 256
local LOOKED_MAX = 10000   -- messages one call passes over, gives back or promotes
local HELD_MAX = 10000     -- messages of a queue that wait for their groups; beyond, lanes wait
local ARGUMENTS_MAX = 4000 -- what one command is given at most
local ASIDE = 4294967295
local DIGEST_BYTES = 16
local STATE_BYTES = 65     -- longer than what would be kept in a list that is searched through

local LEASED, READY, DELAYED, HELD_BACK = 1, 2, 3, 4
-- The numbers of delivery/events.py.
local RELEASED, FAILED, EXPIRED, DEAD, OUTLIVED, REDRIVEN, HELD = 0, 1, 2, 3, 4, 5, 6
local RETURNED_AS = { [RELEASED] = 'released', [FAILED] = 'failed', [EXPIRED] = 'expired' }

-- Turns: what came back by its offset; then what was pushed with a delay, by when it was due; then
-- what was looked at and never delivered.
local TURN_RETURNED, TURN_NEW = -4.5e15, 6e15
local TURN_SHIFT = 1e16

local NO_GROUP = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
local STATE = '>BBI8I4I4I4I8Bc16I2'
local STATE_HEAD = 49
local STATE_GROUP = 32
local LETTER = '>I8I8I4I4I4BI2'
local LETTER_HEAD = 31

-- Small things ------------------------------------------------------------------------------------

local rules_cache, rules_cached = {}, 0

local function rules_of(text)
  local rules = rules_cache[text]
  if rules then return rules end
  rules = cjson.decode(text)
  for name, value in pairs(rules) do
    if value == cjson.null then rules[name] = nil end
  end
  rules.segment_size = rules.segment_items or 100
  rules.keeps = rules.keep_seconds ~= nil or rules.keep_bytes ~= nil
  rules.is_strict = rules.max_leases == 1
  if rules.rate then
    rules.interval_ns = math.max(1, math.floor(1e9 / rules.rate + 0.5))
  end
  if rules_cached >= RULES_CACHED then rules_cache, rules_cached = {}, 0 end
  rules_cache[text], rules_cached = rules, rules_cached + 1
  return rules
end

local function make_lane(base, priority, said, first)
  local name = 'queue_' .. whole(priority)
  return {
    priority = priority, name = name, key = base .. ':' .. name .. '_seg_',
    is_new = not said[first + 1],
    count = tonumber(said[first] or 0), next_offset = tonumber(said[first + 1] or 0),
    head = tonumber(said[first + 2] or 0), tail = tonumber(said[first + 3] or 0),
    tail_count = tonumber(said[first + 4] or 0),
  }
end

-- Read what every call needs to know, at once. What is changed of it is written by `finish`.
local function open(base, now_us, ticks_us)
  local meta = base .. ':metadata'
  local said = redis.call('HMGET', meta, 'rules', 'paused', 'generation', 'token', 'lease_first',
    'delayed_first', 'in_line', 'queue_0:count', 'queue_0:next_offset', 'queue_0:head_segment',
    'queue_0:tail_segment', 'queue_0:tail_count')
  return {
    base = base, now = now_us, ticks = ticks_us, meta = meta,
    rules = rules_of(said[1] or DEFAULT_RULES),
    paused = said[2] == '1',
    generation = said[3],
    token = tonumber(said[4] or 0),
    lease_first = tonumber(said[5] or ''),
    delayed_first = tonumber(said[6] or ''),
    in_line = tonumber(said[7] or 0),
    lanes = { [0] = make_lane(base, 0, said, 8) },
    changes = {}, news = 0, room = 0,
  }
end

-- Have a field of the metadata written at the end of the call.
local function set(q, field, value)
  local changes = q.changes
  changes[#changes + 1] = field
  changes[#changes + 1] = value
end

local function set_in_line(q, by)
  q.in_line = q.in_line + by
  q.is_line_changed = true
end

local function note_lease_end(q, ticks_us)
  if q.lease_first == nil or ticks_us < q.lease_first then
    q.lease_first = ticks_us
    set(q, 'lease_first', whole(ticks_us))
  end
end

local function note_due(q, due_us)
  if q.delayed_first == nil or due_us < q.delayed_first then
    q.delayed_first = due_us
    set(q, 'delayed_first', whole(due_us))
  end
end

local function id_of(lane, offset)
  if lane == ASIDE then return string.format('later-%016d', offset) end
  return string.format('%d-%d', lane, offset)
end

local function place_of(id)
  local lane, offset = string.match(id, '^(.+)-(%d+)$')
  if lane == 'later' then return ASIDE, tonumber(offset) end
  return tonumber(lane), tonumber(offset)
end

-- Call a command with many arguments, a part of them at a time.
local function call_many(command, key, arguments)
  for first = 1, #arguments, ARGUMENTS_MAX do
    redis.call(command, key, unpack(arguments, first, math.min(first + ARGUMENTS_MAX - 1, #arguments)))
  end
end

-- Return fields of a hash, a part of them at a time.
local function get_many(key, fields)
  if #fields <= ARGUMENTS_MAX then return redis.call('HMGET', key, unpack(fields)) end
  local found = {}
  for first = 1, #fields, ARGUMENTS_MAX do
    local last = math.min(first + ARGUMENTS_MAX - 1, #fields)
    for place, value in ipairs(redis.call('HMGET', key, unpack(fields, first, last))) do
      found[first + place - 1] = value
    end
  end
  return found
end

local function add_total(q, name, count)
  if count > 0 then redis.call('HINCRBY', q.base .. ':totals', name, count) end
end

local function has_ttl(item)
  local flags = string.byte(item, 9)
  -- A dead letter that was redriven has no such time any more (bit 2).
  return flags % 2 == 1 and math.floor(flags / 4) % 2 == 0
end

local function is_over(q, item)
  return has_ttl(item) and struct.unpack('>I8', item, 13) <= q.now
end

local function group_of(item)
  local flags = string.byte(item, 9)
  if flags < 8 then return nil end
  local first = flags % 2 == 1 and 21 or 13
  return string.sub(item, first, first + DIGEST_BYTES - 1)
end

local function pack_state(s)
  local packed = struct.pack(STATE, s.kind, s.started, s.token, s.attempt, s.since, s.priority,
    s.not_before, s.cause, s.group or NO_GROUP, #s.text) .. s.text
  if #packed < STATE_BYTES then packed = packed .. string.rep('\0', STATE_BYTES - #packed) end
  return packed
end

local function unpack_state(packed)
  local kind, started, token, attempt, since, priority, not_before, cause, group, size =
    struct.unpack(STATE, packed)
  return {
    kind = kind, started = started, token = token, attempt = attempt, since = since,
    priority = priority, not_before = not_before, cause = cause,
    group = group ~= NO_GROUP and group or nil,
    text = string.sub(packed, STATE_HEAD + 1, STATE_HEAD + size),
  }
end

local function state_of(q, id)
  local packed = redis.call('HGET', q.base .. ':touched', id)
  return packed and unpack_state(packed)
end

local function save_state(q, id, s)
  redis.call('HSET', q.base .. ':touched', id, pack_state(s))
end

local function item_of(q, id)
  return redis.call('HGET', q.base .. ':bodies', id)
end

-- Lanes -------------------------------------------------------------------------------------------

local function lane_of(q, priority)
  local lane = q.lanes[priority]
  if lane then return lane end
  local name = 'queue_' .. whole(priority)
  local said = redis.call('HMGET', q.meta, name .. ':count', name .. ':next_offset',
    name .. ':head_segment', name .. ':tail_segment', name .. ':tail_count')
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

local function leave_drained(lane)
  if lane.count == 0 then
    lane.head = lane.tail
  end
end

-- Groups ------------------------------------------------------------------------------------------

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

local function held_member(s, id, turn)
  return string.format('%010d%017d', s.priority, turn + TURN_SHIFT) .. id
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

-- Have as many of a group stand in line again as it may have places for, of each priority.
local function call_up(q, group)
  local key = q.base .. ':held_' .. group
  local leased = tonumber(redis.call('HGET', q.base .. ':groups', 'l' .. group) or 0)
  local room = q.rules.group_concurrency - leased
  if room <= 0 then return end
  local after = '-'
  while true do
    local first = redis.call('ZRANGEBYLEX', key, after, '+', 'LIMIT', 0, 1)[1]
    if not first then return end
    local priority = string.sub(first, 1, 10)
    local called = redis.call('ZRANGEBYLEX', key, '[' .. first, '(' .. priority .. ':', 'LIMIT', 0, room)
    for _, member in ipairs(called) do
      local id = string.sub(member, 28)
      redis.call('ZREM', key, member)
      local s = state_of(q, id)
      if s then
        change_held(q, s, -1)
        s.kind = READY
        save_state(q, id, s)
        line_up(q, id, s)
      end
    end
    after = '[' .. priority .. ':'  -- Behind every digit.
  end
end

-- Take a message out of its group for good.
local function leave_group(q, s)
  if not s.group then return end
  if s.kind == LEASED then bump(q, 'l' .. s.group, -1) end
  if s.started == 1 then bump(q, 's' .. s.group, -1) end
  call_up(q, s.group)
end

-- Settling ----------------------------------------------------------------------------------------

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
  redis.call('HSET', q.base .. ':kept', id_of(lane, offset), item)
  redis.call('ZADD', q.base .. ':kept_' .. whole(lane), whole(offset), whole(offset))
  redis.call('HINCRBY', q.meta, 'kept_' .. whole(lane) .. ':bytes', #item)
  q.trims = q.trims or {}
  q.trims[lane] = true
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

-- Time --------------------------------------------------------------------------------------------

-- Give back what leases that have ended held.
local function tend_leases(q)
  local ended = redis.call('ZRANGEBYSCORE', q.base .. ':leases', '-inf', whole(q.ticks), 'LIMIT', 0, LOOKED_MAX)
  for _, id in ipairs(ended) do
    local s = state_of(q, id)
    if not s then
      redis.call('ZREM', q.base .. ':leases', id)
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
  for _, lane in pairs(q.lanes) do
    if lane.is_changed then
      local name = lane.name
      set(q, name .. ':count', lane.count)
      set(q, name .. ':next_offset', whole(lane.next_offset))
      set(q, name .. ':head_segment', whole(lane.head))
      set(q, name .. ':tail_segment', whole(lane.tail))
      set(q, name .. ':tail_count', lane.tail_count)
      lane.is_changed = false
    end
  end
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

-- Taking ------------------------------------------------------------------------------------------

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
    redis.call('HDEL', q.base .. ':touched', id)
    redis.call('HDEL', q.base .. ':bodies', id)
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

-- Take up to `most` neighbours that were never delivered. Returns a delivery, how many were looked
-- at, and whether the lane must wait for the groups of those before.
local function take_from_lane(q, lane, most, settles)
  local priority = lane.priority
  local first = lane.next_offset - lane.count
  local items = take_fresh(lane, most)
  if not items then return nil, 0, false end
  local taken, start = {}, first
  for place, item in ipairs(items) do
    local flags = string.byte(item, 9)
    if flags % 2 == 1 or flags >= 8 then
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
          priority = priority, items = { item }, ids = { id } }
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
    items = taken }, #items, false
end

-- Return what to deliver next, and whether there may be more than could be looked at.
local function take(q, most, settles)
  local out = {}
  if q.paused then return out, false end
  local looked = 0
  local full = {}
  -- None is more urgent than 0: where that seems to have enough, the others are not asked for yet.
  local is_short = q.in_line == 0 and q.lanes[0].count >= most
  while most > 0 do
    local progressed = false
    local lines = is_short and { 0 } or redis.call('ZRANGE', q.base .. ':lines', 0, -1)
    for _, said in ipairs(lines) do
      local priority = tonumber(said)
      local delivery, found
      repeat
        delivery, found = take_returned(q, priority, settles)
        if found then progressed, looked = true, looked + 1 end
        if delivery then
          out[#out + 1] = delivery
          most = most - 1
        end
      until not found or most == 0 or looked > LOOKED_MAX or (settles and delivery)
      -- Who pops makes place in a group, so that others may come before all the rest.
      if most == 0 or looked > LOOKED_MAX or (settles and delivery) then break end
      local lane = lane_of(q, priority)
      local changed, again = false, false
      while most > 0 and lane.count > 0 and not full[priority] and looked <= LOOKED_MAX do
        local size, is_full
        delivery, size, is_full = take_from_lane(q, lane, most, settles)
        looked = looked + (delivery and 1 or size)
        changed = true
        if is_full then
          full[priority] = true
        elseif delivery then
          out[#out + 1] = delivery
          most = most - #delivery.items
          progressed = true
          if settles and delivery.ids then again = true break end
        end
      end
      if changed then
        leave_drained(lane)
        save_lane(q, lane)
      end
      if lane.count == 0 and redis.call('EXISTS', q.base .. ':ready_' .. whole(priority)) == 0 then
        redis.call('ZREM', q.base .. ':lines', priority)
      end
      if most == 0 or again or looked > LOOKED_MAX then break end
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
  tend(q)
  local ttl = ttl_of(q, argv[5])
  if not ttl then return redis.error_reply('SEGUETTL') end
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
  tend(q)
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

-- Pushing -----------------------------------------------------------------------------------------

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
  redis.call('PERSIST', q.base .. ':requests')
end

local function lanes_of(q)
  local lanes = {}
  for _, priority in ipairs(redis.call('ZRANGE', q.base .. ':lanes', 0, -1)) do
    lanes[#lanes + 1] = lane_of(q, tonumber(priority))
  end
  return lanes
end

local function fresh_count(q)
  local count = 0
  for _, lane in ipairs(lanes_of(q)) do count = count + lane.count end
  return count
end

-- Return the members of a line and those of its priority that wait for their groups, by turn.
local function line_of(q, priority)
  local entries = {}
  local ready = redis.call('ZRANGE', q.base .. ':ready_' .. whole(priority), 0, -1, 'WITHSCORES')
  for place = 1, #ready, 2 do
    entries[#entries + 1] = { tonumber(ready[place + 1]), ready[place] }
  end
  local held = redis.call('HGET', q.meta, 'queue_' .. whole(priority) .. ':held')
  if held and tonumber(held) > 0 then
    local mark = string.format('%010d', priority)
    for _, field in ipairs(redis.call('HKEYS', q.base .. ':groups')) do
      if string.sub(field, 1, 1) == 'h' then
        local key = q.base .. ':held_' .. string.sub(field, 2)
        for _, member in ipairs(redis.call('ZRANGEBYLEX', key, '[' .. mark, '(' .. mark .. ':')) do
          local turn = tonumber(string.sub(member, 11, 27)) - TURN_SHIFT
          entries[#entries + 1] = { turn, string.sub(member, 28) }
        end
      end
    end
  end
  table.sort(entries, function(one, other)
    if one[1] ~= other[1] then return one[1] < other[1] end
    return one[2] < other[2]
  end)
  return entries
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
    for _, entry in ipairs(line_of(q, priority)) do
      if dropped == count then break end
      local s = state_of(q, entry[2])
      if s then
        settle(q, entry[2], s)
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
    leave_drained(lane)
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
  tend(q)
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

-- Settling ----------------------------------------------------------------------------------------

-- Say why a lease is not its holder's.
local function lost_because(s)
  if not s then return 'gone' end
  if s.kind == LEASED then return 'other' end
  return 'returned'
end

-- Settle leases, each as id and token. Answers the place, from 0, and reason of each that is lost.
local function ack(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  tend(q)
  local lost, plain = {}, {}
  local ids = {}
  for place = 4, #argv, 2 do ids[#ids + 1] = argv[place] end
  local states = get_many(base .. ':touched', ids)
  local keeps, done = q.rules.keeps, {}
  for place, id in ipairs(ids) do
    local packed, token = states[place], tonumber(argv[2 * place + 3])
    local kind, _, held = 0, 0, 0
    if packed and not done[id] then kind, _, held = struct.unpack('>BBI8', packed) end
    if kind == LEASED and held == token then
      done[id] = true
      if keeps or string.sub(packed, STATE_GROUP, STATE_GROUP + DIGEST_BYTES - 1) ~= NO_GROUP then
        settle(q, id, unpack_state(packed))
      else
        plain[#plain + 1] = id
      end
    else
      lost[#lost + 1] = place - 1
      lost[#lost + 1] = lost_because(packed and not done[id] and unpack_state(packed) or nil)
    end
  end
  if #plain > 0 then
    call_many('ZREM', base .. ':leases', plain)
    call_many('HDEL', base .. ':touched', plain)
    call_many('HDEL', base .. ':bodies', plain)
    q.room = q.room + #plain
  end
  add_total(q, 'acked', #ids - #lost / 2)
  finish(q)
  return lost
end

local function backoff_us(q, failures, chance)
  local rules = q.rules
  local delay = math.min(rules.backoff_base * 2 ^ math.min(math.max(failures, 0), 62), rules.backoff_cap)
  return math.max(0, math.floor(delay * 1e6 * (1 + rules.backoff_jitter * chance) + 0.5))
end

-- End the lease of 4:id with 5:token without success: 6:cause, 7:delay µs or nothing, 8:reason,
-- 9:chance from -1 to 1.
local function nack(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  tend(q)
  local id, cause = argv[4], tonumber(argv[6])
  local s = state_of(q, id)
  if not s or s.kind ~= LEASED or s.token ~= tonumber(argv[5]) then
    finish(q)
    return redis.error_reply('SEGUELOST ' .. lost_because(s))
  end
  if cause == DEAD or (cause == FAILED and is_last(q, s)) then
    bury(q, id, s, cause, argv[8])
  else
    local delay = 0
    if argv[7] ~= '' then
      delay = tonumber(argv[7])
    elseif cause == FAILED then
      delay = backoff_us(q, s.attempt - s.since - 1, tonumber(argv[9]))
    end
    give_back(q, id, s, cause, delay > 0 and now_us + delay or 0, argv[8])
    if delay > 0 then q.news = q.news + 1 end
    if q.rules.max_leases then q.news = q.news + 1 end
  end
  finish(q)
  return 1
end

-- Let the lease of 4:id with 5:token end 6:µs from now (nothing: as the rules say). 7:1 checks that
-- the rules allow it.
local function extend(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  tend(q)
  finish(q)
  local ttl = argv[7] == '1' and ttl_of(q, argv[6]) or tonumber(argv[6])
  if argv[7] == '1' and not ttl_of(q, argv[6]) then return redis.error_reply('SEGUETTL') end
  local s = state_of(q, argv[4])
  if not s or s.kind ~= LEASED or s.token ~= tonumber(argv[5]) then
    return redis.error_reply('SEGUELOST ' .. lost_because(s))
  end
  redis.call('ZADD', base .. ':leases', 'XX', whole(ticks_us + ttl), argv[4])
  note_lease_end(q, ticks_us + ttl)
  finish(q)
  return 1
end

-- Looking -----------------------------------------------------------------------------------------

-- Visit what waits, in order, until `visit(id, state or nil, lane, offset, priority, item)` says
-- true.
local function each_waiting(q, visit)
  for _, lane in ipairs(lanes_of(q)) do
    local priority = lane.priority
    for _, entry in ipairs(line_of(q, priority)) do
      local id = entry[2]
      local s, item = state_of(q, id), item_of(q, id)
      if s and item then
        local home, offset = place_of(id)
        if visit(id, s, home, offset, priority, item) then return end
      end
    end
    local offset = lane.next_offset - lane.count
    local segment = lane.head
    while offset < lane.next_offset and segment <= lane.tail do
      for _, item in ipairs(redis.call('LRANGE', segment_key(lane, segment), 0, -1)) do
        if visit(id_of(priority, offset), nil, priority, offset, priority, item) then return end
        offset = offset + 1
      end
      segment = segment + 1
    end
  end
end

-- Visit what could be delivered now, as groups allow it, until `visit(…, is_outlived)` says true.
local function each_admitted(q, visit)
  local places = q.rules.group_concurrency
  local taken = {}
  local held = 0
  each_waiting(q, function(id, s, lane, offset, priority, item)
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
        return held > HELD_MAX
      end
      if not is_over(q, item) then
        count[1] = count[1] + 1
        if not is_started then count[2] = count[2] + 1 end
      elseif is_started then
        count[2] = count[2] - 1
      end
    end
    return visit(id, s, priority, item, is_over(q, item))
  end)
end

-- Answer up to 4:count messages that would be delivered next: id, priority, attempt, item of each.
local function peek(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  tend(q)
  finish(q)
  local answer, left = {}, tonumber(argv[4])
  if q.paused then return answer end
  each_admitted(q, function(id, s, priority, item, is_outlived)
    if not is_outlived then
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
  untake_fresh(lane, delivery.items, 1)
  save_lane(q, lane)
  redis.call('ZADD', q.base .. ':lines', priority, priority)
end

-- Answer whether something could be leased now, and in how many µs something may happen. 4:waiter
-- is woken within 5:µs.
local function probe(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  tend(q)
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
  return { #found, more and 0 or next_event(q, rate_wait_us(q)) }
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
  tend(q)
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
  tend(q)
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

-- Answer the segment size, where each priority's first message that was never delivered is, and all
-- that waits: priority, offset (-1 if it came back), item.
local function state(base, _, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  tend(q)
  finish(q)
  local cursors, waiting = {}, {}
  for _, lane in ipairs(lanes_of(q)) do
    cursors[#cursors + 1] = lane.priority
    cursors[#cursors + 1] = lane.next_offset - lane.count
  end
  each_waiting(q, function(_, s, lane, offset, priority, item)
    waiting[#waiting + 1] = priority
    waiting[#waiting + 1] = (s and (lane == ASIDE or s.cause ~= HELD)) and -1 or offset
    waiting[#waiting + 1] = item
  end)
  return { q.rules.segment_size, cursors, waiting }
end

-- Return the item of a message that was never delivered.
local function fresh_item(q, lane, offset)
  local first = lane.next_offset - lane.count
  if offset < first or offset >= lane.next_offset then return nil end
  if redis.call('HEXISTS', q.meta, lane.name .. ':recut') == 0 then
    local number = math.floor(offset / q.rules.segment_size)
    local start = number == lane.head and first or number * q.rules.segment_size
    return redis.call('LINDEX', segment_key(lane, number), offset - start)
  end
  local left = offset - first
  for number = lane.head, lane.tail do
    local length = redis.call('LLEN', segment_key(lane, number))
    if left < length then return redis.call('LINDEX', segment_key(lane, number), left) end
    left = left - length
  end
  return nil
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

-- Answer how the message 4:id stands, and its dead letter if it is one.
local function look_up(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  tend(q)
  finish(q)
  local id = argv[4]
  local alive, letter = {}, {}
  local packed, item = redis.call('HGET', base .. ':touched', id), item_of(q, id)
  if packed and item then
    add_status(q, alive, id, packed, unpack_state(packed).priority, item)
  else
    local priority, offset = place_of(id)
    local fresh = priority ~= ASIDE and fresh_item(q, lane_of(q, priority), offset)
    if fresh then add_status(q, alive, id, nil, priority, fresh) end
  end
  local dead = redis.call('HGET', base .. ':letters', id)
  if dead and #alive == 0 then letter = { id, dead } end
  return { alive, letter }
end

-- Return the offsets of a lane that were touched and are not settled, in order, from `first` on.
local function touched_of(all, lane, first)
  local offsets = {}
  for _, each in ipairs(all) do
    if each[1] == lane and each[2] >= first then offsets[#offsets + 1] = each[2] end
  end
  table.sort(offsets)
  return offsets
end

-- Answer up to 4:limit messages behind lane 5 and offset 6 that are in state 7 (0: any) and not
-- dead, in the order of their ids.
local function browse(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  tend(q)
  finish(q)
  local limit, after_lane, after_offset = tonumber(argv[4]), tonumber(argv[5]), tonumber(argv[6])
  local wanted = tonumber(argv[7])
  local all = {}
  for _, id in ipairs(redis.call('HKEYS', base .. ':touched')) do
    local lane, offset = place_of(id)
    all[#all + 1] = { lane, offset }
  end
  local numbers = {}
  for _, lane in ipairs(lanes_of(q)) do numbers[#numbers + 1] = lane.priority end
  numbers[#numbers + 1] = ASIDE
  local answer = {}
  for _, lane in ipairs(numbers) do
    if lane >= after_lane then
      local first = lane == after_lane and after_offset + 1 or 0
      for _, offset in ipairs(touched_of(all, lane, first)) do
        if #answer >= limit * 5 then return answer end
        local id = id_of(lane, offset)
        local packed, item = redis.call('HGET', base .. ':touched', id), item_of(q, id)
        local s = packed and unpack_state(packed)
        local kind = s and (s.kind == HELD_BACK and READY or s.kind)
        if s and item and (wanted == 0 or kind == wanted) then
          add_status(q, answer, id, packed, s.priority, item)
        end
      end
      if lane ~= ASIDE and (wanted == 0 or wanted == READY) then
        local fresh = lane_of(q, lane)
        local offset = math.max(first, fresh.next_offset - fresh.count)
        while offset < fresh.next_offset do
          if #answer >= limit * 5 then return answer end
          local item = fresh_item(q, fresh, offset)
          if item then add_status(q, answer, id_of(lane, offset), nil, lane, item) end
          offset = offset + 1
        end
      end
    end
  end
  return answer
end

-- Operating ---------------------------------------------------------------------------------------

local function rules(base)
  return redis.call('HGET', base .. ':metadata', 'rules')
end

-- Have 4:rules hold from now on. 5:1 if another rate, or none, is among them.
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
    for _, lane in ipairs(lanes_of(q)) do
      if lane.next_offset > 0 then redis.call('HSET', q.meta, lane.name .. ':recut', 1) end
    end
  end
  for _, field in ipairs(redis.call('HKEYS', base .. ':groups')) do
    if string.sub(field, 1, 1) == 'h' then call_up(q, string.sub(field, 2)) end
  end
  if before.keeps then
    for _, lane in ipairs(lanes_of(q)) do trim_kept(q, lane.priority) end
    trim_kept(q, ASIDE)
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
  tend(q)
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
    leave_drained(lane)
    save_lane(q, lane)
  end
  for _, id in ipairs(redis.call('HKEYS', base .. ':touched')) do
    local s = state_of(q, id)
    if s and s.kind ~= LEASED then
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
  if last > 0 then redis.call('SET', base .. ':token', whole(last)) end
  redis.call('PEXPIRE', base .. ':requests', whole(REQUEST_KEPT_US / 1000))
  rouse(base, 'takers', LOOKED_MAX, 0)
  rouse(base, 'pushers', LOOKED_MAX, 0)
  return is_there
end

-- Dead letters ------------------------------------------------------------------------------------

-- Answer up to 4:count dead letters from the number 5 on: id and letter of each.
local function letters(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  tend(q)
  finish(q)
  local answer = {}
  local ids = redis.call('ZRANGEBYSCORE', base .. ':dead', argv[5], '+inf', 'LIMIT', 0, argv[4])
  for _, id in ipairs(ids) do
    answer[#answer + 1] = id
    answer[#answer + 1] = redis.call('HGET', base .. ':letters', id) or ''
  end
  return answer
end

-- Bring dead letters back, each as id and number; answer how many were still there.
local function revive(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  tend(q)
  local revived = 0
  for place = 4, #argv, 2 do
    local id = argv[place]
    local letter = redis.call('HGET', base .. ':letters', id)
    if letter and struct.unpack('>I8', letter) == tonumber(argv[place + 1]) then
      local _, _, priority, attempt, _, _, size = struct.unpack(LETTER, letter)
      local item = string.sub(letter, LETTER_HEAD + size + 1)
      redis.call('HDEL', base .. ':letters', id)
      redis.call('ZREM', base .. ':dead', id)
      local s = fresh_state(priority, group_of(item))
      s.attempt, s.since, s.cause = attempt, attempt, REDRIVEN
      redis.call('HSET', base .. ':bodies', id, item)
      save_state(q, id, s)
      line_up(q, id, s)
      revived = revived + 1
    end
  end
  add_total(q, 'redriven', revived)
  finish(q)
  return revived
end

-- Drop dead letters, each as id and number, or all if none is named; answer how many.
local function discard(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  local discarded = 0
  if #argv == 3 then
    tend(q)
    discarded = redis.call('ZCARD', base .. ':dead')
    redis.call('UNLINK', base .. ':dead', base .. ':letters')
  end
  for place = 4, #argv, 2 do
    local id = argv[place]
    local letter = redis.call('HGET', base .. ':letters', id)
    if letter and struct.unpack('>I8', letter) == tonumber(argv[place + 1]) then
      redis.call('HDEL', base .. ':letters', id)
      redis.call('ZREM', base .. ':dead', id)
      discarded = discarded + 1
    end
  end
  add_total(q, 'discarded', discarded)
  finish(q)
  return discarded
end

-- History -----------------------------------------------------------------------------------------

-- Answer the lanes there are, and where each ends.
local function lanes(base, _, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  local answer = {}
  for _, lane in ipairs(lanes_of(q)) do
    answer[#answer + 1] = lane.priority
    answer[#answer + 1] = lane.next_offset
  end
  local later = redis.call('HGET', q.meta, 'later:next_offset')
  if later then
    answer[#answer + 1] = ASIDE
    answer[#answer + 1] = tonumber(later)
  end
  return answer
end

-- Answer up to 4:count messages of the lane 5 that are still kept, settled or not, from the offset 6
-- on: offset, priority, item.
local function history(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  local most, lane, first = tonumber(argv[4]), tonumber(argv[5]), tonumber(argv[6])
  if q.rules.keeps then trim_kept(q, lane) end
  local found = {}
  local kept = redis.call('ZRANGEBYSCORE', base .. ':kept_' .. whole(lane), whole(first), '+inf', 'LIMIT', 0, most)
  for _, offset in ipairs(kept) do
    found[#found + 1] = { tonumber(offset), redis.call('HGET', base .. ':kept', id_of(lane, tonumber(offset))) }
  end
  local all = {}
  for _, id in ipairs(redis.call('HKEYS', base .. ':touched')) do
    local home, offset = place_of(id)
    if home == lane and offset >= first then
      found[#found + 1] = { offset, item_of(q, id), state_of(q, id).priority }
    end
  end
  if not q.rules.keeps then
    for _, id in ipairs(redis.call('HKEYS', base .. ':letters')) do
      local home, offset = place_of(id)
      if home == lane and offset >= first then
        local letter = redis.call('HGET', base .. ':letters', id)
        local _, _, priority, _, _, _, size = struct.unpack(LETTER, letter)
        found[#found + 1] = { offset, string.sub(letter, LETTER_HEAD + size + 1), priority }
      end
    end
  end
  if lane ~= ASIDE then
    local fresh = lane_of(q, lane)
    local offset = math.max(first, fresh.next_offset - fresh.count)
    local stop = math.min(fresh.next_offset, offset + most)
    while offset < stop do
      found[#found + 1] = { offset, fresh_item(q, fresh, offset) }
      offset = offset + 1
    end
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  local answer = {}
  for place = 1, math.min(#found, most) do
    answer[#answer + 1] = found[place][1]
    answer[#answer + 1] = found[place][3] or (lane ~= ASIDE and lane or -1)
    answer[#answer + 1] = found[place][2] or ''
  end
  return answer
end

local FREES = { 'allow-oom' }

offer('push_plain', push_plain)
offer('push', push)
offer('lease', lease, FREES, recall_lease)
offer('pop', pop, FREES)
offer('ack', ack, FREES)
offer('nack', nack, FREES)
offer('extend', extend, FREES)
offer('peek', peek, FREES)
offer('probe', probe, FREES)
offer('count', count, FREES)
offer('stats', stats, FREES)
offer('state', state, FREES)
offer('look_up', look_up, FREES)
offer('browse', browse, FREES)
offer('rules', rules, FREES)
offer('configure', configure)
offer('pause', pause, FREES)
offer('purge', purge, FREES)
offer('remove', remove, FREES)
offer('letters', letters, FREES)
offer('revive', revive)
offer('discard', discard, FREES)
offer('lanes', lanes, FREES)
offer('history', history, FREES)
