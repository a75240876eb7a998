-- Numbers as texts, as arguments of commands, and in records.

local numbers = {}

-- A number as a text, exact for integers below 2^53: Lua's own conversion keeps only 14 digits. Most numbers are whole
-- and take the conversion that costs half as much.
function numbers.exact(number)
  if number % 1 == 0 and number < 9e15 and number > -9e15 then return string.format('%d', number) end
  return string.format('%.17g', number)
end

-- A number for a command. The server converts it itself, exactly and in a fifth of the time. But before Redis 7.4 a whole number
-- with eight zeros at its end becomes 1e+8, which is a score, but no whole number for `HINCRBY` and for those who read a record.
function numbers.argument(number)
  if number == 0 then return 0 end -- many fields are; and -0 is no whole number for `HINCRBY`
  return number % 1e8 == 0 and numbers.exact(number) or number
end

-- A number of a record: nil for a text that is none, and for one that no moment or sum reaches.
function numbers.read(text)
  local found = tonumber(text)
  return found and found > -1e24 and found < 1e24 and found or nil
end
