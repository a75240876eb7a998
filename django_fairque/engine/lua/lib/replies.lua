-- Replies are recorded for two minutes, or for less if they would take more memory than this: but for twice as long as a call is
-- repeated (`options.reply_ttl`). `replies` counts their bytes in periods of ten seconds, this one and the one before.
--
-- include options counters clock

local replies = {}

local LONGEST, MOST_BYTES, PERIOD, OVERHEAD = 120e6, 32e6, 10e6, 200
function replies.ttl(size)
  local shard, period = counters.shard, math.floor(clock.now / PERIOD)
  if shard.replies_in ~= period then
    counters.set('replies_before', shard.replies_in == period - 1 and shard.replies or 0)
    counters.set('replies_in', period)
    counters.set('replies', 0)
  end
  counters.set('replies', shard.replies + size + OVERHEAD)
  local affordable = MOST_BYTES / math.max(shard.replies, shard.replies_before) * PERIOD
  return string.format('%d', math.max(options.reply_ttl, math.min(LONGEST, affordable)) / 1000)
end
