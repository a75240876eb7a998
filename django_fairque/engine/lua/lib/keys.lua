-- Names of the keys that contain a user, task or worker. engine/scripting/commands.py has the same names.

local keys = {}

function keys.task(id) return P .. 'task:' .. id end
function keys.payload(id) return P .. 'payload:' .. id end
function keys.history(id) return P .. 'history:' .. id end
function keys.user(user_name) return P .. 'user:' .. user_name end
function keys.periods(user_name) return P .. 'periods:' .. user_name end
function keys.normal(user_name) return P .. 'queue:user:' .. user_name .. ':normal' end
function keys.critical(user_name) return P .. 'queue:user:' .. user_name .. ':critical' end
function keys.scheduled(user_name) return P .. 'queue:user:' .. user_name .. ':scheduled' end
function keys.limit(id) return P .. 'limit:' .. id end
function keys.limit_users(id, lane) return P .. 'limit_users:' .. lane .. ':' .. id end
function keys.limit_tags(id) return P .. 'limit_tags:' .. id end
function keys.limit_waiting(id) return P .. 'limit_waiting:' .. id end
function keys.limit_queue(id, user_name) return P .. 'limit_queue:' .. #user_name .. ':' .. user_name .. ':' .. id end
function keys.parked(entry) return P .. 'parked:' .. entry end
function keys.leases(worker) return P .. 'leases:' .. worker end
function keys.revoked(worker) return P .. 'revoked:' .. worker end
function keys.waiting(id) return P .. 'deps:waiting:' .. id end
function keys.blocked(id) return P .. 'deps:blocked:' .. id end
function keys.reacting(id) return P .. 'deps:reacting:' .. id end
function keys.first(id) return P .. 'deps:first:' .. id end
function keys.remote(id) return P .. 'remote:' .. id end
function keys.watchers(id) return P .. 'deps:remote:' .. id end
function keys.run(run) return P .. 'run:' .. run end
function keys.delivered(id) return P .. 'delivered:' .. id end
function keys.unique(user_name, key) return P .. 'unique:' .. #user_name .. ':' .. user_name .. ':' .. key end
function keys.members(organization_name) return P .. 'ring:' .. organization_name end
