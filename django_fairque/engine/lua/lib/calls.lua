-- Calls on keys that may be damaged: such a key costs its user or its task, and nobody else.

local calls = {}

calls.CHUNK = 1000             -- most members in one variadic command (unpack fails at 8000)

-- Make one call on a key that belongs to one user, organization or task. Returns nil if that key is of another type than
-- the queue writes: nothing is changed then.
function calls.attempt(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if string.sub(reply.err, 1, 9) ~= 'WRONGTYPE' then return redis.call(command, key, ...) end -- raises the error again
  return nil
end

function calls.refuse_damaged(key)
  error({ err = 'WRONGTYPE ' .. key .. ' is not of the type that the queue writes; fairque_check names such keys' })
end
