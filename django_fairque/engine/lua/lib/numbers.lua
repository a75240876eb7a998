-- Convert numbers: to texts, to arguments of commands, and from records.

local numbers = {}

-- Return a number as a text, exact for integers below 2^53. Lua's own conversion keeps only 14 digits. Most numbers are
-- whole and take the conversion that costs half as much.
function numbers.exact(number)
  if number % 1 == 0 and number < 9e15 and number > -9e15 then return string.format('%d', number) end
  return string.format('%.17g', number)
end

-- Return a number as an argument of a command. The server converts a Lua number itself, exactly and in a fifth of the
-- time. But before Redis 7.4 it writes a whole number with eight zeros at its end as 1e+8. That is a valid score, but
-- no integer for `HINCRBY` or for readers of a record.
function numbers.argument(number)
  if number == 0 then return 0 end -- many fields are 0, and `HINCRBY` does not accept -0
  return number % 1e8 == 0 and numbers.exact(number) or number
end

-- Return the number in a record. Return nil for a text that is no number, and for a number that is too large for any
-- moment or sum.
function numbers.read(text)
  local found = tonumber(text)
  return found and found > -1e24 and found < 1e24 and found or nil
end
