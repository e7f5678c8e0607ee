{"user": "u1", "amount": "4.50"}
{"user": "u2", "amount": "1.00"}
