-- Dead letters.

-- Answer up to 4:count dead letters from the number 5 on: id, number and letter of each.
local function letters(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  finish(q)
  local answer = {}
  local found = redis.call('ZRANGEBYSCORE', base .. ':dead', argv[5], '+inf', 'WITHSCORES', 'LIMIT',
    0, argv[4])
  for place = 1, #found, 2 do
    answer[#answer + 1] = found[place]
    answer[#answer + 1] = found[place + 1]
    answer[#answer + 1] = redis.call('HGET', base .. ':letters', found[place]) or ''
  end
  return answer
end

-- Bring dead letters back, each as id and number; answer how many were still there.
local function revive(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  local revived = 0
  for place = 4, #argv, 2 do
    local id = argv[place]
    local letter = redis.call('HGET', base .. ':letters', id)
    if letter and #letter >= LETTER_HEAD and struct.unpack('>I8', letter) == tonumber(argv[place + 1]) then
      local _, _, priority, attempt, _, _, size = struct.unpack(LETTER, letter)
      local item = string.sub(letter, LETTER_HEAD + size + 1)
      redis.call('HDEL', base .. ':letters', id)
      redis.call('ZREM', base .. ':dead', id)
      local s = fresh_state(priority, group_of(item))
      s.attempt, s.since, s.cause = attempt, attempt, REDRIVEN
      unkeep(q, id)
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
    if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
    discarded = redis.call('ZCARD', base .. ':dead')
    redis.call('UNLINK', base .. ':dead', base .. ':letters')
  end
  for place = 4, #argv, 2 do
    local id = argv[place]
    local letter = redis.call('HGET', base .. ':letters', id)
    if letter and #letter >= 8 and struct.unpack('>I8', letter) == tonumber(argv[place + 1]) then
      redis.call('HDEL', base .. ':letters', id)
      redis.call('ZREM', base .. ':dead', id)
      discarded = discarded + 1
    end
  end
  add_total(q, 'discarded', discarded)
  finish(q)
  return discarded
end

