-- A form is a set of options that several tasks of a push share, so its values are computed once for all of them.
-- `record` has the fields of a new record: first the fields that differ, whose values `fields_of` fills in, then the
-- equal ones, and after `size` the fields that only some tasks have. `common` is the last part of the heads
-- (lib/heads.lua) of tasks that go straight into their user's normal queue and only wait there for their start.
--
-- include heads lists

local forms = {}

local PLUS = 43 -- the byte of `+`
local function time_of(text) -- a moment, or a length of time after the acceptance
  if string.byte(text) == PLUS then return nil, tonumber(string.sub(text, 2)) end
  return tonumber(text)
end
local MAX_WAITS = 10 -- by default debouncing delays a task for at most this many debounce times
local OPTIONAL = { [1] = 'name', [5] = 'expires', [7] = 'timeout', [8] = 'sla', [13] = 'retries', [14] = 'max_deliveries', [15] = 'limits' }
local function read_form(text)
  local values = lists.unpack(text)
  local due, delay = time_of(values[4])
  local expires, lifetime = time_of(values[5])
  local has_times = values[4] ~= '' or values[5] ~= ''
  if lifetime then values[5] = '' end -- each task gets its own moment of expiry
  local record = { 'state', '', 'user', '', 'created', '', 'priority', values[2], 'max_retries', values[6] }
  for at, field in pairs(OPTIONAL) do
    if values[at] and values[at] ~= '' then
      record[#record + 1] = field
      record[#record + 1] = values[at]
    end
  end
  local debounce = tonumber(values[11])
  local limits = values[15] and values[15] ~= '' and values[15] or nil
  local is_plain = values[2] ~= '6' and not limits and not has_times and values[8] == '' and not debounce
  return {
    common = is_plain and heads.common(record), record = record, size = #record, priority = tonumber(values[2]), is_chosen = values[3] == '1',
    due = due, delay = delay, expires = expires, lifetime = lifetime, sla = tonumber(values[8]),
    unique = values[9], window = tonumber(values[10]) or debounce or 0, debounce = debounce,
    max_wait = tonumber(values[12]) or debounce and MAX_WAITS * debounce, limits = limits,
  }
end

-- Most calls repeat the options of an earlier call, so the latest forms are kept, except forms with a unique key, a
-- fixed start time, or a long text.
local KEPT, LARGE = 100, 1000
local kept, number_kept = {}, 0
function forms.read(text)
  local form = kept[text]
  if form then return form end
  form = read_form(text)
  if form.unique == '' and not form.due and #text <= LARGE then
    if number_kept == KEPT then kept, number_kept = {}, 0 end
    kept[text], number_kept = form, number_kept + 1
  end
  return form
end
