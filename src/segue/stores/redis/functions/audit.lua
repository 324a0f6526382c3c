-- Which keys a queue has at a moment, and what those hold whose names nobody knows before (audit.py, which
-- reads the others in the same transaction). The keys are those of queue.lua.

local NO_WRITES = { 'no-writes' }
local KEPT_ASIDE = 'kept_4294967295'
local SEGMENTS_MAX = 100000   -- of a lane, beside those that are named: its numbers may be wrong

-- Visit the name of every key that the lanes and the groups speak of.
local function each_name(base, visit)
  visit(KEPT_ASIDE)
  for _, priority in ipairs(redis.call('ZRANGE', base .. ':lanes', 0, -1)) do
    visit('ready_' .. priority)
    visit('kept_' .. priority)
    local lane = 'queue_' .. priority
    local said = redis.call('HMGET', base .. ':metadata', lane .. ':head_segment', lane .. ':tail_segment')
    local head, tail = tonumber(said[1] or 0) or 0, tonumber(said[2] or 0) or 0
    for segment = math.max(head, tail - SEGMENTS_MAX), tail do
      visit(lane .. '_seg_' .. whole(segment))
    end
  end
  for _, field in ipairs(redis.call('HKEYS', base .. ':groups')) do
    if string.sub(field, 1, 1) == 'h' then visit('held_' .. string.sub(field, 2)) end
  end
end

-- Answers name, ms to live and content (members and scores, or how long a list is) of every key there is: of
-- those named in 4:… and of those the lanes and groups speak of.
local function read(base, argv)
  local answer, seen = {}, {}
  local function visit(name)
    if seen[name] then return end
    seen[name] = true
    local key = base .. ':' .. name
    local kind = redis.call('TYPE', key).ok
    if kind == 'none' then return end
    local content = {}
    if kind == 'list' then content = redis.call('LLEN', key) end
    if kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
    answer[#answer + 1] = { name, redis.call('PTTL', key), content }
  end
  each_name(base, visit)
  for place = 4, #argv do visit(argv[place]) end
  return answer
end

offer('read', read, NO_WRITES)
