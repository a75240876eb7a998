-- The options of the queue: one argument with `name=value` for each option. The argument is the same from call to call,
-- so it is parsed only when it has changed. Moments and lengths of time are in microseconds; 0 means no limit.

local options = {
  fair_by = 'time', -- or 'tasks'
  fair_by_tasks = false,
  head_start = 0, -- added to each task's waiting time before the weight of its priority multiplies it
  max_deliveries = 0,
  result_ttl = 0,
  failed_ttl = 0,
  user_ttl = 0, -- the record of an idle user is kept for this time
  minute_ttl = 0, -- the figures of a minute are kept for this time
  reply_ttl = 0, -- the shortest time for which a reply is kept
  sweep_limit = 0,
  max_backlog = 0,
  max_backlog_bytes = 0,
  max_result_bytes = 0,
  max_dead_letters = 0,
  at_risk = 0, -- so long before its deadline a task is at risk
  default_sla = {}, -- by priority, from 0 (bulk) to 7 (urgent)
  starves_after = {}, -- by priority, from 1 to 3; 0: never
  least_normal = 0, -- the least share of the worker time for lane normal while it waits
  least_bulk = 0, -- the same for lane bulk
  is_spread = false, -- the queue has other shards
  release = '', -- the version of the caller's code (`CODE_VERSION`), percent-encoded; empty without the setting
}

local read = false
each_call(function()
  local text = ARGV[2]
  if text == read then return end
  local found = {}
  for name, value in string.gmatch(text, '(%S+)=(%S+)') do found[name] = tonumber(value) or value end
  for name in pairs(options) do
    if found[name] then options[name] = found[name] end
  end
  options.fair_by_tasks, options.is_spread = options.fair_by == 'tasks', found.shards > 1
  for priority = 0, 7 do
    options.default_sla[priority] = found['sla:' .. priority]
    options.starves_after[priority] = found['starves_after:' .. priority]
  end
  options.release = string.match(text, ' release=(%S+)$') or '' -- not a number, as 1.10 would be
  read = text
end)
