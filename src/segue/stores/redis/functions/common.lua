-- What the functions of every kind share. Loaded in front of each of them.
--
-- Every function is called with one key, the base of all keys it uses, which carries the hash tag
-- of the thing it is about: all of them are in one slot. Its first arguments are
--
--   1  time      empty for the server's own, else "<µs since 1970> <µs of ticks>" (for tests)
--   2  line      who asks: "<client>.<number>"; empty if nothing is changed
--   3  request   a number that grows with each request of a line
--
-- and what the function needs follows. Refusals are errors that begin with SEGUE.
--
-- <base>:requests        HASH  line → the number, time and answer of its last request
-- <base>:waiting_<what>  ZSET  who waits for something → until when, µs of ticks
-- <base>:wake_<waiter>   LIST  whoever waits blocks here (BLPOP); an element wakes it

local REQUESTS_KEPT = 16       -- lines that are remembered without a look at their age
local REQUEST_KEPT_US = 600e6  -- how long a request may take to arrive a second time
local WAKE_KEPT_MS = 10000     -- how long a call waits for somebody who may be gone

-- Numbers beyond 2^31 must not be written by the Lua of the server, which rounds them.
local function whole(number)
  return string.format('%d', number)
end

local function time_of(argument)
  if argument == '' then
    local now = redis.call('TIME')
    local now_us = tonumber(now[1]) * 1000000 + tonumber(now[2])
    return now_us, now_us
  end
  local now, ticks = string.match(argument, '^(%d+) (%d+)$')
  return tonumber(now), tonumber(ticks)
end

-- Drop lines nobody has used for long. Looks at a few at a time.
local function forget_lines(key, now_us)
  if redis.call('HLEN', key) <= REQUESTS_KEPT then return end
  for _, line in ipairs(redis.call('HRANDFIELD', key, 8)) do
    local seen = redis.call('HGET', key, line)
    if seen and struct.unpack('>I8', seen, 9) + REQUEST_KEPT_US < now_us then
      redis.call('HDEL', key, line)
    end
  end
end

-- Note that `waiter` blocks until something of the kind `what` happens. Those who gave up are
-- forgotten: they are many where nothing ever happens.
local function enlist(base, what, waiter, until_us, ticks_us)
  local key = base .. ':waiting_' .. what
  redis.call('ZREMRANGEBYSCORE', key, '-inf', '(' .. whole(ticks_us))
  redis.call('ZADD', key, whole(until_us), waiter)
end

-- Note that `waiter` has found what it waited for: the next call is for somebody else.
local function delist(base, what, waiter)
  redis.call('ZREM', base .. ':waiting_' .. what, waiter)
end

-- Wake up to `most` of those who wait for `what`, the most patient last.
local function rouse(base, what, most, ticks_us)
  local key = base .. ':waiting_' .. what
  while most > 0 do
    local first = redis.call('ZPOPMIN', key)
    if #first == 0 then return end
    if tonumber(first[2]) >= ticks_us then
      local wake = base .. ':wake_' .. first[1]
      redis.call('RPUSH', wake, 1)
      redis.call('PEXPIRE', wake, WAKE_KEPT_MS)
      most = most - 1
    end
  end
end

-- Have `body(base, argv, now_us, ticks_us)` done once for a request, and answer as it did if the
-- request comes again. `recall(base, answer)` makes the answer of what was remembered of it, if
-- `body` returned something else to remember.
local function once(base, argv, body, recall)
  local now_us, ticks_us = time_of(argv[1])
  local line = argv[2]
  if line == '' then
    return (body(base, argv, now_us, ticks_us))
  end
  local key = base .. ':requests'
  local request = tonumber(argv[3])
  local seen = redis.call('HGET', key, line)
  if seen then
    local last = struct.unpack('>I8', seen)
    if last == request then
      -- Written again: who waits for replicas on a new connection waits for what that one wrote.
      redis.call('HSET', key, line, seen)
      local remembered = cmsgpack.unpack(string.sub(seen, 17))
      return recall and recall(base, remembered) or remembered
    end
    if last > request then
      return redis.error_reply('SEGUESTALE request ' .. whole(request) .. ' came too late')
    end
  else
    forget_lines(key, now_us)
  end
  local answer, memory = body(base, argv, now_us, ticks_us)
  if type(answer) == 'table' and answer.err then
    return answer
  end
  if memory == nil then memory = answer end
  redis.call('HSET', key, line, struct.pack('>I8I8', request, now_us) .. cmsgpack.pack(memory))
  return answer
end

-- Offer `body` as a function. Those that free memory must run when there is none left.
local function offer(name, body, flags, recall)
  redis.register_function{
    function_name = 'segue_@KIND@_' .. name .. '_@VERSION@',
    callback = function(keys, argv) return once(keys[1], argv, body, recall) end,
    flags = flags or {},
  }
end

