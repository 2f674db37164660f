\set value random(1, 1000000000)
INSERT INTO walproof.inserted (client, value, filler) VALUES (:client_id, :value, repeat('x', 84));
