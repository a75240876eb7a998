-- The options of the queue: one argument of words, the same from call to call, so it is read when it has changed.

local options = {}

local read = false
each_call(function()
  local text = ARGV[2]
  if text == read then return end
  local words, n = {}, 0
  for word in string.gmatch(text, '%S+') do
    n = n + 1
    words[n] = n == 1 and word or tonumber(word)
  end
  options.fair_by_tasks = words[1] == 'tasks'
  options.head_start, options.max_deliveries, options.result_ttl, options.failed_ttl = unpack(words, 2, 5)
  options.user_ttl, options.minute_ttl, options.sweep_limit, options.max_backlog = unpack(words, 6, 9)
  options.default_sla, options.at_risk, options.starves_after = { unpack(words, 10, 15) }, words[16], { unpack(words, 17, 19) }
  options.is_spread, options.max_backlog_bytes, options.least_ttl = words[20] == 1, words[21], words[22]
  options.max_result_bytes, options.max_dead_letters = words[23], words[24]
  read = text
end)
