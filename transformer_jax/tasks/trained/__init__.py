"""What a user holds: trained models that translate, continue and fill texts, and predict."""
