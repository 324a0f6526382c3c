-- A lock with a name, and the fencing tokens that come from it.
--
-- <base>:lock            HASH  the lock; kept for ever, so that no token is given twice
--     token                    the one given last
--     owner                    who holds it; missing while nobody does
--     until                    µs of ticks when it expires; missing while nobody holds it
-- <base>:request_<line>  STRING  see common.lua
-- <base>:waiting_lock    ZSET  who waits until it is released, see common.lua
-- <base>:wake_<waiter>   LIST  see common.lua
--
-- Nothing is kept at <base> itself: while its slot moves to another node, the one that is losing it
-- then sends every call on, and none finds some of the keys here and some there.

local NO_WRITES = {'no-writes'}
-- Locks must work when memory has run out: what they guard may be what frees some.
local ALWAYS = {'allow-oom'}

local function lock_of(base)
  local found = redis.call('HMGET', base .. ':lock', 'token', 'owner', 'until')
  return {
    token = tonumber(found[1] or 0),
    owner = found[2],
    until_us = tonumber(found[3] or 0),
  }
end

local function is_held(lock, ticks_us)
  return lock.owner and ticks_us < lock.until_us
end

-- owner, ttl, waiter, how long it waits → 1, token | 0, owner, µs left
local function acquire(base, argv, now_us, ticks_us)
  local owner, ttl_us, waiter, step_us = argv[4], tonumber(argv[5]), argv[6], tonumber(argv[7])
  local lock = lock_of(base)
  if is_held(lock, ticks_us) then
    if waiter ~= '' then enlist(base, 'lock', waiter, ticks_us + step_us, ticks_us) end
    return {0, lock.owner, lock.until_us - ticks_us}
  end
  -- By the clock, so that none is repeated by a replica that has missed the last ones.
  local token = math.max(lock.token + 1, now_us)
  redis.call('HSET', base .. ':lock', 'token', whole(token), 'owner', owner,
    'until', whole(ticks_us + ttl_us))
  if waiter ~= '' then redis.call('ZREM', base .. ':waiting_lock', waiter) end
  return {1, token}
end

-- Return why whoever acquired with `token` does not hold the lock, or nil if it does.
local function loss(base, token, ticks_us)
  local lock = lock_of(base)
  if lock.owner and lock.token == token then
    if is_held(lock, ticks_us) then return nil end
    return redis.error_reply('SEGUELOST it expired')
  end
  if lock.token > token then
    return redis.error_reply('SEGUELOST it was taken over')
  end
  return redis.error_reply('SEGUELOST it was released')
end

-- token, ttl
local function renew(base, argv, now_us, ticks_us)
  local refusal = loss(base, tonumber(argv[4]), ticks_us)
  if refusal then return refusal end
  redis.call('HSET', base .. ':lock', 'until', whole(ticks_us + tonumber(argv[5])))
  return 1
end

-- token
local function release(base, argv, now_us, ticks_us)
  local refusal = loss(base, tonumber(argv[4]), ticks_us)
  if refusal then return refusal end
  redis.call('HDEL', base .. ':lock', 'owner', 'until')
  rouse(base, 'lock', 1, ticks_us)
  return 1
end

-- → owner, token, µs left | nothing
local function holder(base, argv, now_us, ticks_us)
  local lock = lock_of(base)
  if not is_held(lock, ticks_us) then return {} end
  return {lock.owner, lock.token, lock.until_us - ticks_us}
end

offer('acquire', acquire, ALWAYS)
offer('renew', renew, ALWAYS)
offer('release', release, ALWAYS)
offer('holder', holder, NO_WRITES)
