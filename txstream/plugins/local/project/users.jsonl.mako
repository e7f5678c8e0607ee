{"user": "u1", "name": "Ann"}
{"user": "u2", "name": "Bo"}
{"user": "u2", "gone": true}
