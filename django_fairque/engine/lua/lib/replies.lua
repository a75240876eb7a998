-- Replies are stored for two minutes, so that a repeated call gets the same reply. If they would take more than 32 MB
-- together, they are stored for a shorter time, but at least for `options.reply_ttl`, which is twice the time for which
-- a call is repeated. `replies` counts their bytes in periods of ten seconds: the current period and the previous one.
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
