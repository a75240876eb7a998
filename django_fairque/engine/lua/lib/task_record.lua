-- include heads numbers calls keys clock

local task_record = {}

local attempt = calls.attempt -- a local alias, which Lua finds faster: this function is called often

local PRIORITIES = { ['0'] = 0, ['1'] = 1, ['2'] = 2, ['3'] = 3, ['4'] = 4, ['5'] = 5, ['6'] = 6, ['7'] = 7 } -- the six priorities, and the classes of lib/queues.lua

-- Read the fields that only some tasks have: those that run, ran before, or were dead letters. Most tasks have none of
-- these fields when they are handed out.
local function read_past(task, raw)
  task.worker, task.done = raw.worker or '', raw.done
  task.retries = raw.retries and numbers.read(raw.retries) or 0
  task.max_retries = raw.max_retries and numbers.read(raw.max_retries) or 0
  task.deliveries = raw.deliveries and numbers.read(raw.deliveries) or 0
  task.token, task.token_text = raw.token and numbers.read(raw.token) or 0, raw.token
  task.died = raw.died and numbers.read(raw.died) or 0
  task.started = raw.started and numbers.read(raw.started)
  task.cost, task.is_listed = raw.cost and numbers.read(raw.cost), raw.listed == '1' -- the task was handed out to a worker that serves a list of users
  task.lead, task.organization_lead = raw.lead and numbers.read(raw.lead) or 0, raw.organization_lead and numbers.read(raw.organization_lead) or 0
  task.is_suspect = raw.suspect == '1' -- the task was running when its process died
  task.is_companion = raw.companion == '1' -- the task shares a call with another task
end

-- Return whether the task's last attempt was reported, so that the task waits for the next attempt. A task that was
-- given back has no token.
local function waits_for_retry(raw)
  return raw.state ~= 'started' and raw.done and raw.token and raw.token ~= '0' and raw.done:match('^%d+') == raw.token
end

-- Return the task from its record and its head, or nil if they can't be used: no state, user or known priority, or a
-- record of another type. The record is read with one HGETALL: it has some eight fields, and reading all is cheaper
-- than reading sixteen by name. Most payloads are read together with their heads; of a larger payload only the first
-- `LARGE` bytes are read.
local LARGE = 1024
function task_record.read(id)
  local key = keys.task(id)
  local flat, raw, text, payload_at = attempt('HGETALL', key), {}, nil, nil
  if not flat then return nil end
  for i = 1, #flat, 2 do raw[flat[i]] = flat[i + 1] end
  if not (raw.user and raw.created and raw.priority) then
    text = attempt('GETRANGE', keys.payload(id), 0, LARGE - 1)
    raw, payload_at = heads.read(text)
    for i = 1, #flat, 2 do raw[flat[i]] = flat[i + 1] end
  end
  local priority = PRIORITIES[raw.priority]
  if not (raw.state and raw.user and priority) then return nil end
  local created = raw.created and numbers.read(raw.created) or clock.now
  local task = {
    id = id, key = key, raw = raw, state = raw.state, name = raw.name, user = raw.user, priority = priority, created = created,
    text = text, payload_at = payload_at, is_whole = text and #text < LARGE, -- for a task with a head: the start of the payload, and whether that is the whole payload
    ready = raw.ready and numbers.read(raw.ready) or created, waited = raw.waited, limits = raw.limits,
    sla = raw.sla and numbers.read(raw.sla),
    size = raw.size and numbers.read(raw.size), -- for a task that counts towards its user's limit on bytes
    -- A task that was given back, or whose process died, has started in time, so it does not expire. A task that waits
    -- for a retry must start again in time.
    expires = raw.expires and (not raw.started or waits_for_retry(raw)) and numbers.read(raw.expires) or nil,
    owner = nil, cost = nil, token_text = nil, started = nil, deadline = nil, kept_with = nil, -- set later; without room for these fields the table would be moved when it grows
    worker = '', retries = 0, max_retries = 0, deliveries = 0, token = 0, died = 0, is_listed = false, lead = 0, organization_lead = 0, is_suspect = false, is_companion = false,
  }
  if raw.token or raw.died or task.state ~= 'queued' then read_past(task, raw) end
  return task
end
