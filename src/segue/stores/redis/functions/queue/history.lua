-- What is still kept of what was pushed.

-- Answer the lanes there are, where what was never delivered begins in each, and where it ends.
local function lanes(base, _, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  if not tended(q) then return redis.error_reply('SEGUEAGAIN') end
  local answer = {}
  for _, lane in ipairs(lanes_of(q)) do
    if q.rules.keeps then trim_kept(q, lane.priority) end
    answer[#answer + 1] = lane.priority
    answer[#answer + 1] = lane.next_offset - lane.count
    answer[#answer + 1] = lane.next_offset
  end
  local later = redis.call('HGET', q.meta, 'later:next_offset')
  if later then
    if q.rules.keeps then trim_kept(q, ASIDE) end
    answer[#answer + 1] = ASIDE
    answer[#answer + 1] = tonumber(later)
    answer[#answer + 1] = tonumber(later)
  end
  finish(q)
  return answer
end

-- Answer priority (-1 if only its item says) and item of the messages 4…; nothing of those that are
-- gone.
local function items(base, argv, now_us, ticks_us)
  local q = open(base, now_us, ticks_us)
  local answer = {}
  for place = 4, #argv do
    local id = argv[place]
    local lane, offset = place_of(id)
    local priority = lane ~= ASIDE and lane or -1
    local item = redis.call('HGET', base .. ':bodies', id) or redis.call('HGET', base .. ':kept', id)
    if not item then
      local letter = redis.call('HGET', base .. ':letters', id)
      if letter and #letter >= LETTER_HEAD then
        local _, _, _, _, _, _, size = struct.unpack(LETTER, letter)
        item = string.sub(letter, LETTER_HEAD + size + 1)
      end
    end
    if not item and lane ~= ASIDE then item = fresh_item(q, lane_of(q, lane), offset) end
    if item then
      answer[#answer + 1] = id
      answer[#answer + 1] = priority
      answer[#answer + 1] = item
    end
  end
  return answer
end

