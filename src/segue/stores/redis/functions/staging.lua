-- Writes that are prepared aside, happen with one step, and are finished by whoever comes next.
--
-- With the base of a topic or a queue:
--
-- <base>:writes             HASH  write → what it consists of, as JSON: it has happened, and what is
--                                 not yet in its place is put there by whoever finds it
-- <base>:written            HASH  query → its last batch that is in its place; - for one without
-- <base>:staging_<write>    SET   what tasks have put aside for a write; gone after a while
--
-- With the base of a partition or a queue, where what is put aside lies beside where it will go:
--
-- <base>:staged_<name>_1:slots, :payload   STRING  a batch of records, see partition.lua
-- <base>:staged_<name>:parcels             LIST    messages, see queue.lua: first the priority of
--                                                  bodies that need nothing looked at, or nothing;
--                                                  then bodies, or five words for each message
-- <base>:adopted            ZSET  what was put in its place, until its write is forgotten

local ARGUMENTS_MAX = 4000
local FREES = {'allow-oom'}

local function parts_of(base, name)
  local key = base .. ':staged_' .. name
  return key .. '_1:slots', key .. '_1:payload', key .. ':parcels'
end

-- Putting aside -------------------------------------------------------------------------------

-- Note that the write 4 has 6:what aside for 5:ms.
local function announce(base, argv)
  local key = base .. ':staging_' .. argv[4]
  redis.call('SADD', key, argv[6])
  redis.call('PEXPIRE', key, argv[5])
  return 1
end

local function announced(base, argv)
  return redis.call('SMEMBERS', base .. ':staging_' .. argv[4])
end

-- Have a write not happen, unless it has: what tasks have put aside for it is to be dropped.
local function withdraw(base, argv)
  if redis.call('HEXISTS', base .. ':writes', argv[4]) == 1 then return {} end
  local key = base .. ':staging_' .. argv[4]
  local members = redis.call('SMEMBERS', key)
  redis.call('UNLINK', key)
  return members
end

-- Keep messages aside under the name 4 for 5:ms.
local function stage(base, argv)
  local _, _, key = parts_of(base, argv[4])
  redis.call('DEL', key)
  for first = 6, #argv, ARGUMENTS_MAX do
    redis.call('RPUSH', key, unpack(argv, first, math.min(first + ARGUMENTS_MAX - 1, #argv)))
  end
  redis.call('PEXPIRE', key, argv[5])
  return 1
end

-- Keep what is aside under the names from 5 on for 4:ms, or as long as need be (0); answer how many
-- of them are gone.
local function hold(base, argv)
  local gone = 0
  for place = 5, #argv do
    local found = 0
    for _, key in ipairs({parts_of(base, argv[place])}) do
      found = found + redis.call('EXISTS', key)
      if argv[4] == '0' then
        redis.call('PERSIST', key)
      else
        redis.call('PEXPIRE', key, argv[4])
      end
    end
    if found == 0 then gone = gone + 1 end
  end
  return gone
end

local function unstage(base, argv)
  for place = 4, #argv do redis.call('UNLINK', parts_of(base, argv[place])) end
  return 1
end

-- Forget that something was adopted: nobody will ask again.
local function forget(base, argv)
  for place = 4, #argv do redis.call('ZREM', base .. ':adopted', argv[place]) end
  return 1
end

-- Happening -----------------------------------------------------------------------------------

local function has_happened(base, query, batch)
  local last = redis.call('HGET', base .. ':written', query)
  if not last then return false end
  return batch == '' or (last ~= '-' and tonumber(batch) <= tonumber(last))
end

-- Have the write 4 of the query 5 with the batch 6, which consists of 7, happen: 1. Or 0 if it has
-- before, -1 while another of the query is to be finished first, or -2 if any of what was announced
-- for it, from 8 on, was withdrawn.
local function list(base, argv)
  local write, query, batch = argv[4], argv[5], argv[6]
  if has_happened(base, query, batch) then return 0 end
  for _, other in ipairs(redis.call('HKEYS', base .. ':writes')) do
    if string.sub(other, 1, #query) == query then return -1 end
  end
  for place = 8, #argv do
    if redis.call('SISMEMBER', base .. ':staging_' .. write, argv[place]) == 0 then return -2 end
  end
  redis.call('HSET', base .. ':writes', write, argv[7])
  return 1
end

-- All writes that have happened and are not finished: write, what it consists of.
local function pending(base)
  return redis.call('HGETALL', base .. ':writes')
end

local function is_pending(base, argv)
  return redis.call('HEXISTS', base .. ':writes', argv[4])
end

local function is_done(base, argv)
  return has_happened(base, argv[4], argv[5]) and 1 or 0
end

-- Note that all of the write 4 of the query 5 with the batch 6 is in its place; 7:1 if somebody may
-- try it again.
local function finish(base, argv)
  local write, query, batch = argv[4], argv[5], argv[6]
  if argv[7] == '1' and not has_happened(base, query, batch) then
    redis.call('HSET', base .. ':written', query, batch == '' and '-' or batch)
  end
  redis.call('HDEL', base .. ':writes', write)
  redis.call('UNLINK', base .. ':staging_' .. write)
  return 1
end

offer('announce', announce)
offer('announced', announced, {'no-writes'})
offer('withdraw', withdraw, FREES)
offer('stage', stage)
offer('hold', hold, FREES)
offer('unstage', unstage, FREES)
offer('forget', forget, FREES)
offer('list', list)
offer('pending', pending, {'no-writes'})
offer('is_pending', is_pending, {'no-writes'})
offer('is_done', is_done, {'no-writes'})
offer('finish', finish, FREES)
