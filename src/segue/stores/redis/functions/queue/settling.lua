-- How leases end.

-- Say why a lease is not its holder's.
local function lost_because(s)
  if not s then return 'gone' end
  if s.kind == LEASED then return 'other' end
  if s.cause == HELD then return 'gone' end  -- It waits for its group and was never leased.
  return 'returned'
end

-- Settle leases, each as id and token. Answers the place, from 0, and reason of each that is lost.
local function ack(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  local lost, plain = {}, {}
  local ids = {}
  for place = 4, #argv, 2 do ids[#ids + 1] = argv[place] end
  local states = get_many(base .. ':touched', ids)
  local keeps, done, acked = q.rules.keeps, {}, 0
  for place, id in ipairs(ids) do
    local packed, token = states[place], tonumber(argv[2 * place + 3])
    local kind, _, held = 0, 0, 0
    if packed and #packed >= STATE_HEAD and not done[id] then kind, _, held = struct.unpack('>BBI8', packed) end
    if done[id] == token then
      -- The same lease, named twice.
    elseif kind == LEASED and held == token then
      done[id] = token
      acked = acked + 1
      if keeps or string.sub(packed, STATE_GROUP, STATE_GROUP + DIGEST_BYTES - 1) ~= NO_GROUP then
        settle(q, id, unpack_state(packed))
      else
        plain[#plain + 1] = id
      end
    else
      lost[#lost + 1] = place - 1
      lost[#lost + 1] = done[id] and 'other' or lost_because(packed and unpack_state(packed) or nil)
    end
  end
  if #plain > 0 then
    call_many('ZREM', base .. ':leases', plain)
    call_many('HDEL', base .. ':touched', plain)
    call_many('HDEL', base .. ':bodies', plain)
    q.room = q.room + #plain
  end
  add_total(q, 'acked', acked)
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
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
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
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
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

