-- A queue on the server: priorities, leases, delays, groups, dead letters.
--
-- Keys, each behind <base> = <namespace>:{queue:<name>}
--
--   :metadata            HASH    rules                 how it behaves, JSON; none for the default
--                                paused                1 while nothing is delivered
--                                generation            when its first message was pushed, µs
--                                segment_size          how many items a segment takes
--                                queue_<p>:count       messages of a priority never delivered
--                                queue_<p>:next_offset the offset of the next one to be pushed
--                                queue_<p>:head_segment, :tail_segment
--                                                      the first and last segment there is
--                                queue_<p>:tail_count  how many were ever put in the last one
--                                queue_<p>:cuts        offset:segment:size, where that changed
--                                queue_<p>:held        messages that wait for others of their group
--                                later:next_offset     the same of what is pushed with a delay
--                                dead:next_number      the number of the next dead letter
--                                token                 the token given last
--                                lease_first           no lease ends before, µs of ticks
--                                delayed_first         nothing is due before, µs since 1970
--                                in_line               how many ids all :ready_<p> have together
--                                fresh                 how many were never delivered, all priorities
--                                rate_due, rate_base   when the next one is due by the rate, in ns
--                                                      behind a moment, and that moment, µs of ticks
--                                held                  messages that wait for others of their group
--                                kept_<lane>:bytes     what is kept of settled messages
--   :queue_<p>_seg_<n>   LIST    items never delivered; gone when empty
--   :lanes               ZSET    the priorities that were ever used
--   :lines               ZSET    those that have something to deliver
--   :touched             HASH    id → how a message stands that was taken, or came back, or waits
--   :bodies              HASH    id → its item
--   :ready_<p>           ZSET    ids that can be delivered again, by their turn
--   :delayed             ZSET    ids by when they are due, µs since 1970
--   :leases              ZSET    ids by when their leases end, µs of ticks
--   :groups              HASH    l<group> leased, s<group> have a place, h<group> wait
--   :held_<group>        ZSET    <priority><turn><id> of those that wait for others of a group
--   :dead                ZSET    ids of dead letters by number
--   :letters             HASH    id → dead letter
--   :key_<digest>        STRING  what a deduplication key stands for
--   :kept_<lane>         ZSET    offsets of settled messages that are kept
--   :kept                HASH    id → item
--   :totals              HASH    what happened how often
--   :token               STRING  no token or generation of a removed queue is above
--
-- An item is  time µs (8) · attr (4) · expires µs (8, if it does) · group (16, if any) · prefix · body
-- with the attr of delivery/message.py. An id is <priority>-<offset>, or later-<16 digits>.

local FREES = { 'allow-oom' }

offer('push_plain', push_plain)
offer('push', push)
offer('lease', lease, FREES, recall_lease)
offer('pop', pop, FREES)
offer('ack', ack, FREES)
offer('nack', nack, FREES)
offer('extend', extend, FREES)
offer('peek', peek, FREES)
offer('probe', probe, FREES)
offer('count', count, FREES)
offer('stats', stats, FREES)
offer('state', state, FREES)
offer('metadata', metadata, FREES)
offer('look_up', look_up, FREES)
offer('statuses', statuses, FREES)
offer('rules', rules, FREES)
offer('configure', configure)
offer('pause', pause, FREES)
offer('purge', purge, FREES)
offer('remove', remove, FREES)
offer('letters', letters, FREES)
offer('revive', revive)
offer('discard', discard, FREES)
offer('lanes', lanes, FREES)
offer('items', items, FREES)

-- Adopting ----------------------------------------------------------------------------------------

local ADOPTION_KEPT_US = 30 * 86400e6  -- for a write whose driver died before it could be forgotten

-- Push what staging.lua has under 4:name, once: 1, or 2 if that was done before, or 0 if it is gone.
local function take_in(base, argv, now_us, ticks_us)
  local name = argv[4]
  if redis.call('ZSCORE', base .. ':adopted', name) then return 2 end
  local key = base .. ':staged_' .. name .. ':parcels'
  local words = redis.call('LRANGE', key, 0, -1)
  if #words == 0 then return 0 end
  local priority = words[1]
  local call, size = { argv[1], argv[2], argv[3], '', 0 }, 5
  if priority ~= '' then call[6], size = priority, 6 end
  for place = 2, #words do call[size + place - 1] = words[place] end
  local answer = (priority ~= '' and push_plain or push)(base, call, now_us, ticks_us)
  if type(answer) == 'table' and answer.err then return answer end
  redis.call('ZADD', base .. ':adopted', now_us, name)
  redis.call('ZREMRANGEBYSCORE', base .. ':adopted', '-inf', '(' .. whole(now_us - ADOPTION_KEPT_US))
  redis.call('UNLINK', key)
  return 1
end

offer('take_in', take_in)
