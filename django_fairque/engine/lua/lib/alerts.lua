-- Store alerts for operators. Workers fetch alerts. If no worker does, the oldest are dropped when there are more than
-- 10,000.
--
-- include numbers lists clock

local alerts = {}

local MOST_ALERTS = 10000
function alerts.add(kind, task, detail) -- `detail`: a text or a number
  detail = type(detail) == 'number' and numbers.exact(detail) or detail
  redis.call('RPUSH', K.alerts, lists.pack({ clock.now_text, kind, task.id, task.user, task.raw.name or '', numbers.exact(task.priority), detail }))
  redis.call('LTRIM', K.alerts, -MOST_ALERTS, -1)
end
