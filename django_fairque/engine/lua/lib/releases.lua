-- Attempts by task name and release of the project's code (`CODE_VERSION`). Workers without a release count nothing here.
--
-- The hash `stats:releases` has one text for each task name, with a line for each of its last releases: the release (percent-encoded), its first
-- and last attempt (s), attempts, failed attempts, and run times of all others by bucket (lib/statistics.lua), as `73=12`. A fourth release
-- replaces the one that ended no attempt for the longest time, first among those with too few attempts for a comparison. The numbers of a release
-- are halved when its attempts exceed `MOST_COUNTED`, so that they are about its last 1,000 to 2,000 attempts.
--
-- include numbers options calls clock slot

local releases = {}

local MOST, COMPARABLE, MOST_COUNTED, LAST_BUCKET = 3, 30, 2000, 160 -- releases of a name; attempts; attempts; 12 days
local noted = {} -- by release and name
each_call(function()
  if next(noted) then noted = {} end
end)

local function key() return P .. 'stats:releases' end

function releases.touch()
  if options.release ~= '' then slot.touch(key()) end
end

-- The release of a worker that does not report its attempt itself, from its record.
function releases.of_worker(worker)
  if options.release == '' then return '' end
  local version = calls.attempt('HGET', P .. 'worker:' .. worker, 'code_version') or ''
  return (string.gsub(version, '[^%w._~-]', function(byte) return string.format('%%%02X', string.byte(byte)) end))
end

-- Note an attempt that has ended and was closed. `release` nil: the one of the caller, which ran it.
function releases.note(task, has_failed, release)
  release = release or options.release
  if release == '' or options.release == '' then return end
  local field = release .. ' ' .. (task.name or '')
  local found = noted[field]
  if not found then
    found = { release = release, name = task.name or '', attempts = 0, failed = 0, buckets = {} }
    noted[field] = found
  end
  found.attempts = found.attempts + 1
  local bucket = math.min(task.run_bucket, LAST_BUCKET)
  if has_failed then found.failed = found.failed + 1 else found.buckets[bucket] = (found.buckets[bucket] or 0) + 1 end
end

local function make_room(lines)
  for i, line in ipairs(lines) do
    if tonumber(string.match(line, '^%S+ %d+ %d+ (%d+)') or 0) < COMPARABLE then return table.remove(lines, i) end
  end
  table.remove(lines, 1)
end

-- The line is moved to the end, so the first line is that of the release without an attempt for the longest time.
local function write(found)
  local lines, line = {}, ''
  for one in string.gmatch(redis.call('HGET', key(), found.name) or '', '[^\n]+') do
    if string.sub(one, 1, #found.release + 1) == found.release .. ' ' then line = one else lines[#lines + 1] = one end
  end
  if #lines >= MOST then make_room(lines) end
  local now = numbers.exact(math.floor(clock.now / 1e6))
  local first, attempts, failed, runs = string.match(line, '^%S+ (%d+) %d+ (%d+) (%d+)([%d= ]*)$')
  for bucket, count in string.gmatch(runs or '', '(%d+)=(%d+)') do
    found.buckets[tonumber(bucket)] = (found.buckets[tonumber(bucket)] or 0) + tonumber(count)
  end
  found.attempts, found.failed = found.attempts + (attempts or 0), found.failed + (failed or 0)
  if found.attempts > MOST_COUNTED then
    found.failed = math.floor(found.failed / 2)
    found.attempts = found.failed
    for bucket, count in pairs(found.buckets) do
      found.buckets[bucket] = count > 1 and math.floor(count / 2) or nil
      found.attempts = found.attempts + math.floor(count / 2)
    end
  end
  local parts = { found.release, first or now, now, numbers.exact(found.attempts), numbers.exact(found.failed) }
  for bucket, count in pairs(found.buckets) do parts[#parts + 1] = string.format('%d=%s', bucket, numbers.exact(count)) end
  lines[#lines + 1] = table.concat(parts, ' ')
  redis.call('HSET', key(), found.name, table.concat(lines, '\n'))
end

-- Write the attempts of the task names that have figures (lib/task_names.lua).
function releases.flush(is_kept)
  for _, found in pairs(noted) do
    if is_kept[found.name] then write(found) end
  end
  if next(noted) then noted = {} end
end

function releases.forget(names)
  if options.release ~= '' then redis.call('HDEL', key(), unpack(names)) end
end
