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
-- <base>:request_<line>  STRING  the number of a line's last request (8 bytes) and its answer
-- <base>:waiting_<what>  ZSET    who waits for something → until when, µs of ticks
-- <base>:wake_<waiter>   LIST    whoever waits blocks here (BLPOP); an element wakes it

local REQUEST_KEPT_MS = 600000  -- how long a request may take to arrive a second time
local WAKE_KEPT_MS = 10000      -- how long a call waits for somebody who may be gone

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
  local key = base .. ':request_' .. line
  local request = tonumber(argv[3])
  local head = redis.call('GETRANGE', key, 0, 7)
  if #head == 8 then
    local last = struct.unpack('>I8', head)
    if last == request then
      -- A change: who waits for replicas on a new connection waits for what was written before it.
      redis.call('PEXPIRE', key, REQUEST_KEPT_MS)
      local remembered = cmsgpack.unpack(redis.call('GETRANGE', key, 8, -1))
      if recall and not (type(remembered) == 'table' and remembered.err) then
        return recall(base, remembered)
      end
      return remembered
    end
    if last > request then
      return redis.error_reply('SEGUESTALE request ' .. whole(request) .. ' came too late')
    end
  end
  local answer, memory = body(base, argv, now_us, ticks_us)
  -- Refusals are remembered, too: a copy of one that comes late must not be granted.
  if memory == nil then memory = answer end
  redis.call('SET', key, struct.pack('>I8', request) .. cmsgpack.pack(memory), 'PX', REQUEST_KEPT_MS)
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

