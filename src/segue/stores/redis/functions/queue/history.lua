-- What is still kept of what was pushed.

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

