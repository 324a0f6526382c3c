-- What a message and its state look like, and small things.

local DEFAULT_RULES = '@DEFAULT_RULES@'
local RULES_CACHED = 256
local LOOKED_MAX = 10000   -- messages one call passes over, gives back or promotes
local HELD_MAX = 10000     -- messages of a queue that wait for their groups; beyond, lanes wait
local SLICE = 100          -- who is looked at in a line at a time
local ARGUMENTS_MAX = 4000 -- what one command is given at most
local PORTION_BYTES_MAX = @PORTION_BYTES_MAX@  -- what one call delivers, but for one message
local ASIDE = 4294967295
local DIGEST_BYTES = 16
local TOKEN_KEPT_MS = 30 * 86400000  -- Tokens go by the clock as well: this is for one set back.
local STATE_BYTES = 65     -- longer than what would be kept in a list that is searched through

local LEASED, READY, DELAYED, HELD_BACK = 1, 2, 3, 4
-- The numbers of delivery/events.py.
local RELEASED, FAILED, EXPIRED, DEAD, OUTLIVED, REDRIVEN, HELD = 0, 1, 2, 3, 4, 5, 6
local RETURNED_AS = { [RELEASED] = 'released', [FAILED] = 'failed', [EXPIRED] = 'expired' }

-- Turns: what came back by its offset; then what was pushed with a delay, by when it was due; then
-- what was looked at and never delivered.
-- All below 2^53, beyond which numbers are rounded.
local TURN_RETURNED, TURN_NEW = -4e15, 5e15

local NO_GROUP = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
local STATE = '>BBI8I4I4I4I8Bc16I2'
local STATE_HEAD = 49
local STATE_GROUP = 32
local LETTER = '>I8I8I4I4I4BI2'
local LETTER_HEAD = 31

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

-- Where segments became of another size: offset, segment and size of each, the first one before all.
local function cuts_of(text)
  if not text then return nil end
  local cuts = {}
  for offset, segment, size in string.gmatch(text, '(%d+):(%d+):(%d+)') do
    cuts[#cuts + 1] = { tonumber(offset), tonumber(segment), tonumber(size) }
  end
  return cuts
end

local function make_lane(base, priority, said, first)
  local name = 'queue_' .. whole(priority)
  return {
    priority = priority, name = name, key = base .. ':' .. name .. '_seg_',
    is_new = not said[first + 1],
    count = tonumber(said[first] or 0), next_offset = tonumber(said[first + 1] or 0),
    head = tonumber(said[first + 2] or 0), tail = tonumber(said[first + 3] or 0),
    count_before = tonumber(said[first] or 0),
    tail_count = tonumber(said[first + 4] or 0), cuts = cuts_of(said[first + 5]),
  }
end

-- Read what every call needs to know, at once. What is changed of it is written by `finish`.
local function open(base, now_us, ticks_us)
  local meta = base .. ':metadata'
  local said = redis.call('HMGET', meta, 'rules', 'paused', 'generation', 'token', 'lease_first',
    'delayed_first', 'in_line', 'queue_0:count', 'queue_0:next_offset', 'queue_0:head_segment',
    'queue_0:tail_segment', 'queue_0:tail_count', 'queue_0:cuts', 'fresh')
  return {
    base = base, now = now_us, ticks = ticks_us, meta = meta,
    rules = rules_of(said[1] or DEFAULT_RULES),
    paused = said[2] == '1',
    generation = said[3],
    token = tonumber(said[4] or 0),
    lease_first = tonumber(said[5] or ''),
    delayed_first = tonumber(said[6] or ''),
    in_line = tonumber(said[7] or 0),
    fresh = tonumber(said[14] or 0),
    lanes = { [0] = make_lane(base, 0, said, 8) },
    changes = {}, news = 0, room = 0, called = 0,
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

-- Tell whether an item has all it says it has: anybody may have written it.
local function is_sound(item)
  local flags = string.byte(item, 9)
  if not flags or #item < 12 then return false end
  return #item >= 12 + (flags % 2 == 1 and 8 or 0) + (flags >= 8 and DIGEST_BYTES or 0)
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

-- Return a state, nil if it cannot be one.
local function unpack_state(packed)
  if #packed < STATE_HEAD then return nil end
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
  return packed and unpack_state(packed) or nil
end

local function save_state(q, id, s)
  redis.call('HSET', q.base .. ':touched', id, pack_state(s))
end

local function item_of(q, id)
  local item = redis.call('HGET', q.base .. ':bodies', id)
  return item and is_sound(item) and item or nil
end

-- Forget a message of which nobody can tell what it is.
local function drop_damaged(q, id)
  redis.call('HDEL', q.base .. ':touched', id)
  redis.call('HDEL', q.base .. ':bodies', id)
  redis.call('ZREM', q.base .. ':leases', id)
  redis.call('ZREM', q.base .. ':delayed', id)
  add_total(q, 'damaged', 1)
end

