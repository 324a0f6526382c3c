-- A ring: a record of metadata, and records of entries that are used round and round.
--
-- <base>:metadata        HASH  how the ring stands
--     capacity, entries_per_segment   its shape, for ever
--     head                     the oldest entry anyone can read
--     tail                     the offset the next entry gets
--     swept                    entries before this one are deleted, or overwritten
--     token                    the fencing token given last
--     regrouped                how often groups came or went
--     lock_token, lock_owner, lock_until   the transaction that holds the ring, and its deadline in
--                              µs of ticks; missing once it ended, or others broke its lock
-- <base>:buffer_<n>      HASH  slot → offset, time in µs (8 bytes each) and body of an entry.
--                              The entry at an offset is in record ⌊offset / entries_per_segment⌋
--                              modulo the number of records, in slot offset modulo
--                              entries_per_segment
-- <base>:groups          HASH  group → "<id> <head>"; a head behind tail - capacity stands there
-- <base>:outcomes        HASH  transaction id → what it committed: token, first offset, count, and
--                              group, start, stop of what it took
-- <base>:outcome_order   ZSET  transaction id → token; the oldest are forgotten first
-- <base>:request_<line>  STRING  see common.lua
-- <base>:waiting_lock    ZSET  who waits until the ring is let go of, see common.lua
-- <base>:wake_<waiter>   LIST  see common.lua

local OUTCOMES_MAX = 1000   -- commits that can be asked for by transaction id
local SWEPT_MAX = 1000      -- entries or whole records that one call deletes
local PAIRS_MAX = 1000      -- entries written with one command
local GROUPS_MAX = 100
local ENTRY_HEAD = '>I8I8'
local ENTRY_HEAD_BYTES = 16
local NO_WRITES = {'no-writes'}
-- Taking entries frees memory, and must be possible when there is none left.
local ALWAYS = {'allow-oom'}

local MISSING = 'SEGUEMISSING there is no such ring'
local LOST = 'SEGUELOST its lock expired and was broken'

-- How it stands ------------------------------------------------------------------------------

local function ring_of(base)
  local found = redis.call('HMGET', base .. ':metadata', 'capacity', 'entries_per_segment', 'head',
    'tail', 'swept', 'token', 'regrouped', 'lock_token', 'lock_owner', 'lock_until')
  if not found[1] then return nil end
  return {
    capacity = tonumber(found[1]), per_segment = tonumber(found[2]),
    head = tonumber(found[3]), tail = tonumber(found[4]), swept = tonumber(found[5]),
    token = tonumber(found[6]), regrouped = tonumber(found[7]),
    lock_token = tonumber(found[8] or 0), lock_owner = found[9] or '',
    lock_until = tonumber(found[10] or 0),
  }
end

local function is_locked(ring, ticks_us)
  return ring.lock_token > 0 and ticks_us < ring.lock_until
end

-- By the clock, so that no token is repeated by a replica that has missed the last ones.
local function next_token(ring, now_us)
  return math.max(ring.token + 1, now_us)
end

local function group_of(base, ring, name)
  local found = redis.call('HGET', base .. ':groups', name)
  if not found then return nil end
  local id, head = string.match(found, '^(%d+) (%d+)$')
  return {id = tonumber(id), head = math.max(tonumber(head), ring.tail - ring.capacity)}
end

local function set_group(base, name, id, head)
  redis.call('HSET', base .. ':groups', name, whole(id) .. ' ' .. whole(head))
end

-- Return the head of the group that stands furthest back.
local function slowest(base, ring)
  local least = ring.tail
  for _, found in ipairs(redis.call('HVALS', base .. ':groups')) do
    least = math.min(least, tonumber(string.match(found, ' (%d+)$')))
  end
  return math.max(least, ring.tail - ring.capacity)
end

-- Entries ------------------------------------------------------------------------------------

local function record_key(base, ring, segment)
  return base .. ':buffer_' .. whole(segment % (ring.capacity / ring.per_segment))
end

local function place_of(base, ring, offset)
  local segment = math.floor(offset / ring.per_segment)
  return record_key(base, ring, segment), whole(offset % ring.per_segment)
end

-- Return the offset, time and body of the first entry in [start, stop) that is there.
local function first_entry(base, ring, start, stop)
  local offset = start
  while offset < stop do
    local key, slot = place_of(base, ring, offset)
    local found = redis.call('HGET', key, slot)
    if found then
      local stored, time_us = struct.unpack(ENTRY_HEAD, found)
      if stored == offset then
        return {offset, time_us, string.sub(found, ENTRY_HEAD_BYTES + 1)}
      end
      offset = offset + 1
    elseif redis.call('EXISTS', key) == 0 then
      offset = (math.floor(offset / ring.per_segment) + 1) * ring.per_segment
    else
      offset = offset + 1
    end
  end
  return nil
end

-- Write argv[first], argv[first + 1], … as the entries from `ring.tail` on.
local function add_entries(base, ring, argv, first, now_us)
  local count = #argv - first + 1
  local stop = ring.tail + count
  -- What would be overwritten at once is not written.
  local offset = math.max(ring.tail, stop - ring.capacity)
  while offset < stop do
    local segment = math.floor(offset / ring.per_segment)
    local limit = math.min(stop, (segment + 1) * ring.per_segment, offset + PAIRS_MAX)
    local words = {}
    for each = offset, limit - 1 do
      words[#words + 1] = whole(each % ring.per_segment)
      words[#words + 1] = struct.pack(ENTRY_HEAD, each, now_us) .. argv[first + each - ring.tail]
    end
    redis.call('HSET', record_key(base, ring, segment), unpack(words))
    offset = limit
  end
  ring.tail = stop
end

-- Delete entries before the head, a part of them if they are many: later calls go on.
local function sweep(base, ring)
  -- What lies further back has been overwritten.
  ring.swept = math.max(ring.swept, ring.tail - ring.capacity)
  local left = SWEPT_MAX
  while ring.swept < ring.head and left > 0 do
    local segment = math.floor(ring.swept / ring.per_segment)
    local stop = (segment + 1) * ring.per_segment
    local key = record_key(base, ring, segment)
    if ring.swept % ring.per_segment == 0 and stop <= ring.head then
      redis.call('UNLINK', key)
      left = left - 1
    else
      stop = math.min(stop, ring.head, ring.swept + left)
      local slots = {}
      for each = ring.swept, stop - 1 do slots[#slots + 1] = whole(each % ring.per_segment) end
      redis.call('HDEL', key, unpack(slots))
      left = left - #slots
    end
    ring.swept = stop
  end
end

-- Committing ---------------------------------------------------------------------------------

local function remember(base, txn_id, outcome)
  if txn_id == '' then return end
  redis.call('HSET', base .. ':outcomes', txn_id, cmsgpack.pack(outcome))
  local order = base .. ':outcome_order'
  redis.call('ZADD', order, whole(outcome[1]), txn_id)
  if redis.call('ZCARD', order) > OUTCOMES_MAX then
    redis.call('HDEL', base .. ':outcomes', redis.call('ZPOPMIN', order)[1])
  end
end

-- Write down how the ring stands now that something was committed, which breaks every lock.
local function commit_to(base, ring, token)
  ring.head = math.max(ring.head, ring.tail - ring.capacity)
  sweep(base, ring)
  local key = base .. ':metadata'
  redis.call('HSET', key, 'head', whole(ring.head), 'tail', whole(ring.tail),
    'swept', whole(ring.swept), 'token', whole(math.max(ring.token, token)))
  if ring.lock_token > 0 then
    redis.call('HDEL', key, 'lock_token', 'lock_owner', 'lock_until')
  end
end

-- Tell who wants to step that the ring is held, and wake it later; nil if it is not held.
local function busy(base, ring, ticks_us, waiter, step_us)
  if not is_locked(ring, ticks_us) then
    if waiter ~= '' then redis.call('ZREM', base .. ':waiting_lock', waiter) end
    return nil
  end
  if waiter ~= '' then enlist(base, 'lock', waiter, ticks_us + tonumber(step_us), ticks_us) end
  return {'busy', ring.lock_owner, ring.lock_until - ticks_us}
end

-- waiter, how long it waits, transaction id, overwrite, body → "done", offset | "busy", …
local function enqueue(base, argv, now_us, ticks_us)
  local ring = ring_of(base)
  if not ring then return redis.error_reply(MISSING) end
  local refusal = busy(base, ring, ticks_us, argv[4], argv[5])
  if refusal then return refusal end
  -- Whoever waits besides us is woken by us: nobody holds the ring who could do it.
  rouse(base, 'lock', 1, ticks_us)
  if ring.tail - ring.head >= ring.capacity and argv[7] ~= '1' then
    return redis.error_reply('SEGUEFULL')
  end
  local offset, token = ring.tail, next_token(ring, now_us)
  add_entries(base, ring, argv, 8, now_us)
  commit_to(base, ring, token)
  remember(base, argv[6], {token, offset, 1, {}})
  return {'done', offset}
end

-- waiter, how long it waits, transaction id, group → "done", offset, time, body | "none" | "busy", …
local function dequeue(base, argv, now_us, ticks_us)
  local ring = ring_of(base)
  if not ring then return redis.error_reply(MISSING) end
  local refusal = busy(base, ring, ticks_us, argv[4], argv[5])
  if refusal then return refusal end
  rouse(base, 'lock', 1, ticks_us)
  local name = argv[7]
  local group = group_of(base, ring, name)
  if not group then return redis.error_reply('SEGUENOGROUP') end
  if group.head >= ring.tail then return {'none'} end
  local entry = first_entry(base, ring, group.head, ring.tail)
  -- Else what cannot be read would fill the ring.
  local stop = entry and entry[1] + 1 or ring.tail
  local token = next_token(ring, now_us)
  set_group(base, name, group.id, stop)
  if group.head <= ring.head then ring.head = slowest(base, ring) end
  commit_to(base, ring, token)
  local start = entry and entry[1] or stop
  remember(base, argv[6], {token, 0, 0, {name, start, stop}})
  if not entry then return {'none'} end
  return {'done', entry[1], entry[2], entry[3]}
end

-- Transactions -------------------------------------------------------------------------------

-- → capacity, entries per segment, head, tail, token, regrouped, who holds it, [group, id, head] …
local function standing(base, ring, ticks_us)
  local groups = {}
  local found = redis.call('HGETALL', base .. ':groups')
  for at = 1, #found, 2 do
    local id, head = string.match(found[at + 1], '^(%d+) (%d+)$')
    groups[#groups + 1] = {
      found[at], tonumber(id), math.max(tonumber(head), ring.tail - ring.capacity),
    }
  end
  local holder = is_locked(ring, ticks_us) and ring.lock_owner or ''
  return {ring.capacity, ring.per_segment, ring.head, ring.tail, ring.token, ring.regrouped,
    holder, groups}
end

-- waiter, how long it waits, transaction id, ttl → "done", token, standing, time | "busy", …
local function lock(base, argv, now_us, ticks_us)
  local ring = ring_of(base)
  if not ring then return redis.error_reply(MISSING) end
  local refusal = busy(base, ring, ticks_us, argv[4], argv[5])
  if refusal then return refusal end
  local token = next_token(ring, now_us)
  redis.call('HSET', base .. ':metadata', 'token', whole(token), 'lock_token', whole(token),
    'lock_owner', argv[6], 'lock_until', whole(ticks_us + tonumber(argv[7])))
  return {'done', token, standing(base, ring, ticks_us), now_us}
end

-- Tell whether the commit of a lock that is over is what ended it.
local function was_committed(base, txn_id, token)
  local found = redis.call('HGET', base .. ':outcomes', txn_id)
  return found and cmsgpack.unpack(found)[1] == token
end

-- token, transaction id, regrouped, number of groups, (group, stop, start) …, body …
-- → "done" | "regrouped", standing: the caller must look whether its steps can still be made
local function commit(base, argv, now_us, ticks_us)
  local ring = ring_of(base)
  if not ring then return redis.error_reply(MISSING) end
  local token, txn_id = tonumber(argv[4]), argv[5]
  if ring.lock_token ~= token then
    if was_committed(base, txn_id, token) then return {'done'} end
    return redis.error_reply(LOST)
  end
  if ring.regrouped ~= tonumber(argv[6]) then
    return {'regrouped', standing(base, ring, ticks_us)}
  end
  local first = ring.tail
  local at, taken = 8, {}
  for _ = 1, tonumber(argv[7]) do
    local name, start, stop = argv[at], tonumber(argv[at + 1]), tonumber(argv[at + 2])
    local group = group_of(base, ring, name)
    set_group(base, name, group.id, math.max(group.head, stop))
    taken[#taken + 1], taken[#taken + 2], taken[#taken + 3] = name, start, stop
    at = at + 3
  end
  add_entries(base, ring, argv, at, now_us)
  ring.head = slowest(base, ring)
  commit_to(base, ring, token)
  remember(base, txn_id, {token, first, ring.tail - first, taken})
  rouse(base, 'lock', 1, ticks_us)
  return {'done'}
end

-- token
local function unlock(base, argv, now_us, ticks_us)
  local ring = ring_of(base)
  if ring and ring.lock_token == tonumber(argv[4]) then
    redis.call('HDEL', base .. ':metadata', 'lock_token', 'lock_owner', 'lock_until')
    rouse(base, 'lock', 1, ticks_us)
  end
  return 1
end

-- token, from offset, up to offset → offset, time, body | nothing; refused if the lock is lost
local function read(base, argv)
  local ring = ring_of(base)
  if not ring then return redis.error_reply(MISSING) end
  if ring.lock_token ~= tonumber(argv[4]) then return redis.error_reply(LOST) end
  return first_entry(base, ring, tonumber(argv[5]), tonumber(argv[6])) or {}
end

-- Answers ------------------------------------------------------------------------------------

-- offset → offset, time, body | nothing
local function get(base, argv)
  local ring = ring_of(base)
  if not ring then return redis.error_reply(MISSING) end
  local offset = tonumber(argv[4])
  if offset < ring.head or offset >= ring.tail then return {} end
  return first_entry(base, ring, offset, offset + 1) or {}
end

-- → standing | nothing
local function info(base, argv, now_us, ticks_us)
  local ring = ring_of(base)
  return ring and standing(base, ring, ticks_us) or {}
end

-- transaction id → token, first offset, count, [group, start, stop, …] | nothing
local function outcome(base, argv)
  local found = redis.call('HGET', base .. ':outcomes', argv[4])
  return found and cmsgpack.unpack(found) or {}
end

-- Making one, and groups ---------------------------------------------------------------------

-- capacity, entries per segment → 1 if it is new, its capacity, its entries per segment
local function create(base, argv)
  local ring = ring_of(base)
  if ring then return {0, ring.capacity, ring.per_segment} end
  redis.call('HSET', base .. ':metadata', 'capacity', argv[4], 'entries_per_segment', argv[5],
    'head', 0, 'tail', 0, 'swept', 0, 'token', 0, 'regrouped', 0)
  set_group(base, 'default', 0, 0)
  return {1, tonumber(argv[4]), tonumber(argv[5])}
end

-- group, "head" or "tail"
local function add_group(base, argv, now_us)
  local ring = ring_of(base)
  if not ring then return redis.error_reply(MISSING) end
  local key = base .. ':groups'
  if redis.call('HEXISTS', key, argv[4]) == 1 then return 0 end
  if redis.call('HLEN', key) >= GROUPS_MAX then return redis.error_reply('SEGUEGROUPS') end
  local id = next_token(ring, now_us)
  set_group(base, argv[4], id, argv[5] == 'head' and ring.head or ring.tail)
  redis.call('HSET', base .. ':metadata', 'token', whole(id), 'regrouped', ring.regrouped + 1)
  return 1
end

-- group → 1 if it was there
local function remove_group(base, argv)
  local ring = ring_of(base)
  if not ring then return redis.error_reply(MISSING) end
  if redis.call('HDEL', base .. ':groups', argv[4]) == 0 then return 0 end
  ring.head = slowest(base, ring)
  sweep(base, ring)
  redis.call('HSET', base .. ':metadata', 'head', whole(ring.head), 'swept', whole(ring.swept),
    'regrouped', ring.regrouped + 1)
  return 1
end

offer('enqueue', enqueue)
offer('dequeue', dequeue, ALWAYS)
offer('lock', lock, ALWAYS)
offer('commit', commit)
offer('commit_taking', commit, ALWAYS)
offer('unlock', unlock, ALWAYS)
offer('read', read, NO_WRITES)
offer('get', get, NO_WRITES)
offer('info', info, NO_WRITES)
offer('outcome', outcome, NO_WRITES)
offer('create', create)
offer('add_group', add_group)
offer('remove_group', remove_group, ALWAYS)
