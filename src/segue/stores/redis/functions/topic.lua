-- A topic as a whole: how it is made, its groups and its producers. Records are partition.lua's.
--
-- The base is <namespace>:{topic:<topic>}.
--
-- <base>:manifest                HASH  version, partitions, rules as JSON, created_us
-- <base>:group_<group>:state     HASH  version: how often it changed · state: as JSON, who is a
--                                      member and who has which partition
-- <base>:group_<group>:alive     HASH  member → until when it is taken for alive, µs of ticks
-- <base>:producer_<producer>     HASH  epoch: how often the name was claimed · user: who has it
--                                      until_us: until when, µs of ticks · routes: as JSON, from
--                                      which sequence number on there were how many partitions
--
-- and what common.lua keeps: request_<line>, waiting_group_<group>, wake_<waiter>.

local ROUSED_MAX = 1000  -- members that one change of their group wakes

local function manifest_of(base)
  return redis.call('HMGET', base .. ':manifest', 'version', 'partitions', 'rules', 'created_us')
end

-- {version, partitions, rules, created_us}, or {} if there is no topic.
local function manifest(base)
  local found = manifest_of(base)
  if not found[1] then return {} end
  return found
end

-- Make the topic, unless it exists; answer as `manifest`.
local function create(base, argv, now_us)
  if not manifest_of(base)[1] then
    redis.call('HSET', base .. ':manifest', 'version', 1, 'partitions', argv[4], 'rules', argv[5],
      'created_us', whole(now_us))
  end
  return manifest_of(base)
end

-- Change the manifest if it is still the version that was looked at: 1, else 0.
local function alter(base, argv)
  local version = manifest_of(base)[1]
  if version ~= argv[4] then return 0 end
  redis.call('HSET', base .. ':manifest', 'version', whole(tonumber(version) + 1),
    'partitions', argv[5], 'rules', argv[6])
  return 1
end

-- Have a manifest of this version at least: what partitions were told of may have been lost here,
-- when a replica took over that did not have it yet.
local function lift(base, argv)
  local version = tonumber(manifest_of(base)[1] or 0)
  if version > 0 and version < tonumber(argv[4]) then
    redis.call('HSET', base .. ':manifest', 'version', argv[4])
  end
  return 1
end

-- Groups --------------------------------------------------------------------------------------

local function group_key(base, group)
  return base .. ':group_' .. group
end

-- {ticks, now, version, state, members and until when each is alive}.
local function group_look(base, argv, now_us, ticks_us)
  local key = group_key(base, argv[4])
  local found = redis.call('HMGET', key .. ':state', 'version', 'state')
  return {ticks_us, now_us, tonumber(found[1] or 0), found[2] or '',
    redis.call('HGETALL', key .. ':alive')}
end

-- Replace the state if it is still the version that was looked at: {1, version}, else {0}. The
-- arguments after it are members with for how long each is alive, in µs; none is none any more.
local function group_change(base, argv, _, ticks_us)
  local key = group_key(base, argv[4])
  local version = tonumber(redis.call('HGET', key .. ':state', 'version') or 0)
  if version ~= tonumber(argv[5]) then return {0} end
  redis.call('HSET', key .. ':state', 'version', whole(version + 1), 'state', argv[6])
  for place = 7, #argv, 2 do
    if argv[place + 1] == '' then
      redis.call('HDEL', key .. ':alive', argv[place])
    else
      redis.call('HSET', key .. ':alive', argv[place], whole(ticks_us + tonumber(argv[place + 1])))
    end
  end
  rouse(base, 'group_' .. argv[4], ROUSED_MAX, ticks_us)
  return {1, version + 1}
end

-- Show that a member is alive, unless it is too late: {whether it is, version of the state, whether
-- any other is dead, version of the manifest, partitions}. `waiter` is woken when the state changes.
local function attend(base, argv, _, ticks_us)
  local group, member, ttl_us, waiter, wait_us = argv[4], argv[5], argv[6], argv[7], argv[8]
  local key = group_key(base, group)
  local alive_us = tonumber(redis.call('HGET', key .. ':alive', member) or 0)
  local is_alive = alive_us > ticks_us and 1 or 0
  if is_alive == 1 then
    redis.call('HSET', key .. ':alive', member, whole(ticks_us + tonumber(ttl_us)))
  end
  if waiter ~= '' then
    enlist(base, 'group_' .. group, waiter, ticks_us + tonumber(wait_us), ticks_us)
  end
  local dead = 0
  for _, until_us in ipairs(redis.call('HVALS', key .. ':alive')) do
    if tonumber(until_us) <= ticks_us then dead = 1 end
  end
  local found = manifest_of(base)
  return {is_alive, tonumber(redis.call('HGET', key .. ':state', 'version') or 0), dead,
    tonumber(found[1] or 0), tonumber(found[2] or 0)}
end

-- Producers -----------------------------------------------------------------------------------

-- Use a producer's name for a while: {epoch, routes}, or {} while somebody else does.
local function claim(base, argv, _, ticks_us)
  local key, user, ttl_us = base .. ':producer_' .. argv[4], argv[5], tonumber(argv[6])
  local found = redis.call('HMGET', key, 'epoch', 'user', 'until_us', 'routes')
  if found[2] and found[2] ~= '' and tonumber(found[3]) > ticks_us then return {} end
  local epoch = tonumber(found[1] or 0) + 1
  redis.call('HSET', key, 'epoch', whole(epoch), 'user', user, 'until_us', whole(ticks_us + ttl_us))
  return {epoch, found[4] or ''}
end

local function is_user(key, user)
  return redis.call('HGET', key, 'user') == user
end

-- Go on using a name, also after its time if nobody else did since: 1, or 0 if it is another's.
local function renew(base, argv, _, ticks_us)
  local key = base .. ':producer_' .. argv[4]
  if not is_user(key, argv[5]) then return 0 end
  redis.call('HSET', key, 'until_us', whole(ticks_us + tonumber(argv[6])))
  return 1
end

-- Use a name with an epoch beyond one that was met, for the same reason: that epoch, or 0 if the name
-- is another's.
local function surpass(base, argv)
  local key = base .. ':producer_' .. argv[4]
  if not is_user(key, argv[5]) then return 0 end
  local epoch = math.max(tonumber(redis.call('HGET', key, 'epoch')), tonumber(argv[6])) + 1
  redis.call('HSET', key, 'epoch', whole(epoch))
  return epoch
end

local function release(base, argv)
  local key = base .. ':producer_' .. argv[4]
  if not is_user(key, argv[5]) then return 0 end
  redis.call('HSET', key, 'user', '')
  return 1
end

local function route(base, argv)
  local key = base .. ':producer_' .. argv[4]
  if not is_user(key, argv[5]) then return 0 end
  redis.call('HSET', key, 'routes', argv[6])
  return 1
end

offer('manifest', manifest, {'no-writes'})
offer('create', create)
offer('alter', alter)
offer('lift', lift, {'allow-oom'})
offer('group_look', group_look, {'no-writes'})
offer('group_change', group_change, {'allow-oom'})
offer('attend', attend, {'allow-oom'})
offer('claim', claim, {'allow-oom'})
offer('renew', renew, {'allow-oom'})
offer('surpass', surpass, {'allow-oom'})
offer('release', release, {'allow-oom'})
offer('route', route, {'allow-oom'})
