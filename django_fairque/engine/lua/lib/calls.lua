-- Calls on keys that may be damaged. A damaged key affects only its user or its task.

local calls = {}

calls.CHUNK = 1000             -- most members in one variadic command (Lua's unpack fails at 8000)

-- Make one call on a key of one user, organization or task. Returns nil and changes nothing if the key has another type
-- than the queue writes.
function calls.attempt(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if string.sub(reply.err, 1, 9) ~= 'WRONGTYPE' then return redis.call(command, key, ...) end -- raises the error again
  return nil
end

function calls.refuse_damaged(key)
  error({ err = 'WRONGTYPE ' .. key .. ' is not of the type that the queue writes; fairque_check names such keys' })
end
